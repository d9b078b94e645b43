"""Silences are sampled per phase, without waits; a heartbeat writes lines and records dead threads."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rlrun.observability.run_files import BOARD, read_json_lines
from rlrun.system.telemetry import Telemetry
from rlrun.watchdog.heartbeat import Heartbeat
from rlrun.watchdog.heartbeat import __file__ as heartbeat_file


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rlrun.system.telemetry.time.monotonic", lambda: now[0])
    return now


def test_silences_by_phase_and_first_time(clock):
    telemetry = Telemetry("env/0")
    clock[0] = 50.0  # idle time is not sampled
    with telemetry.span("load"):
        clock[0] += 4.0
    for seconds in (2.0, 0.5, 1.0):
        with telemetry.span("simulate"):
            clock[0] += seconds
            telemetry.count("env_steps")
    status = telemetry.status()
    assert status.silences == {"load, first": (1, 4.0), "simulate, first": (1, 2.0), "simulate": (1, 0.5)}
    clock[0] += 3.0
    assert telemetry.status().silence_s == 3.0 and not telemetry.status().is_first


def test_waiting_for_others_is_no_silence(clock):
    telemetry = Telemetry("env/0")
    missing = ["rollout/0"]
    with telemetry.span("collect"), telemetry.waiting("actions", lambda: missing, 600.0):
        clock[0] += 30.0
        (wait,) = telemetry.status().waits
        assert (wait.what, wait.on, wait.budget_s) == ("actions", ("rollout/0",), 600.0)
        missing.clear()
        assert telemetry.status().waits == ()
        missing.append("rollout/0")
    assert telemetry.status().silences == {"collect, first": (2, 0.0)} and telemetry.status().waits == ()


def test_a_sample_is_the_longest_since_the_last_one(clock):
    """A long silence is in one sample only."""
    telemetry = Telemetry("env/0")
    with telemetry.span("simulate"):
        clock[0] += 1.0
    told = []
    for seconds in (0.5, 90.0, 0.5, 0.7, 1.5, 0.5):
        with telemetry.span("simulate"):
            clock[0] += seconds
        told.append(telemetry.status().silences["simulate"])
    assert told == [(1, 0.5), (2, 90.0), (2, 90.0), (2, 90.0), (3, 1.5), (3, 1.5)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("of", "is_fault"), [("rlrun/watchdog/heartbeat.py", True), ("callbacks.py", False)])
def test_a_thread_that_a_callback_started_is_no_fault_of_the_driver(tmp_path, of: str, is_fault: bool):
    telemetry = Telemetry("driver/0")
    heartbeat = Heartbeat(telemetry, tmp_path, 60.0)
    called = {}
    file = Path(heartbeat_file).parents[2] / of
    exec(compile("def upload(): raise ConnectionError('no route')", file, "exec"), called)
    try:
        thread = threading.Thread(target=called["upload"])
        thread.start()
        thread.join(timeout=60)
    finally:
        heartbeat.close()
    assert ("no route" in telemetry.failure) is is_fault


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_heartbeats_and_dead_threads(tmp_path):
    telemetry = Telemetry("env/0")
    heartbeat = Heartbeat(telemetry, tmp_path, 0.1)

    def die():
        raise ValueError("gone")

    try:
        with telemetry.span("simulate"):
            thread = threading.Thread(target=die, name="reader")
            thread.start()
            thread.join(timeout=5)
            time.sleep(0.35)
    finally:
        heartbeat.close()
    assert telemetry.failure.startswith("thread reader:") and "ValueError: gone" in telemetry.failure
    lines = list(read_json_lines(tmp_path / BOARD / "env-0.jsonl"))
    assert len(lines) >= 3 and "simulate" in {line["phase"] for line in lines}
