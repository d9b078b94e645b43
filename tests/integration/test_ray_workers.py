"""What only processes of their own can do: die, hang, and leave something behind."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rlrun.config.loader import load
from rlrun.controller.workers import WorkerGroup, Workers
from rlrun.placement.planner import plan
from rlrun.placement.this_machine import known_inventory
from rlrun.placement.workload import Workload
from rlrun.system.errors import RunError
from rlrun.watchdog import watchdog
from tests.workers import start_workers

pytestmark = pytest.mark.integration


def pid_of(workers, worker: str) -> int:
    """Of a worker that starts; on a busy machine it takes a while to answer."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for status in workers.statuses():
            if status.worker == worker:
                return status.pid
    raise TimeoutError(f"{worker} has not answered")


@dataclass
class Started:
    """Two env workers on a Ray of their own, for all tests here: to start one takes ten seconds of a core."""

    workers: Workers
    temp_dir: Path
    token: Path
    had_token: bool


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Iterator[Started]:
    run_dir, token = tmp_path_factory.mktemp("run"), Path.home() / ".ray" / "auth_token"
    had_token = token.exists()
    with tempfile.TemporaryDirectory(prefix="rl") as temp_dir:  # pytest's own folders are too long for Ray
        own = [f"output_dir={run_dir}", f"cluster.temp_dir={temp_dir}", "env.num_workers=2", "recovery.node_wait_s=0"]
        config = load(["run=debug", *own])
        workers = start_workers(config, plan(Workload(config), known_inventory(config)), ["env"], run_dir)
        try:
            yield Started(workers, Path(temp_dir), token, had_token)
        finally:
            workers.close()  # closing twice is safe


def loading(workers: Workers) -> list:
    return WorkerGroup(workers, "env").submit_all(lambda env: env.load())


def test_a_stopped_worker_and_a_killed_one_are_named(started: Started):
    workers = started.workers
    pid = pid_of(workers, "env/1")
    os.kill(pid, signal.SIGSTOP)
    waiting = loading(workers)
    with pytest.raises(RunError, match=r"env\[1\]@.* is stopped \(state T\)"):
        workers.wait(waiting, "simulators", 30.0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RunError, match=r"env/1(\.load)?: its process ended"):
        workers.wait(waiting, "simulators", 30.0)
    assert workers.replace("env", 1) == [("env", 1)]


def test_a_replacement_that_does_not_start_is_named_while_the_run_waits_for_it(started: Started, monkeypatch):
    """As when another process has taken the raylet's socket: it answers nothing, and nothing fails."""
    workers = started.workers
    monkeypatch.setattr(watchdog, "MIN_REPORT_S", 2.0)
    pid_of(workers, "env/0")
    (raylet,) = (child for child in psutil.Process().children() if child.name() == "raylet")
    notes = []

    def note(text: str) -> None:
        notes.append(text)
        if "has not started" in text:
            raylet.resume()

    monkeypatch.setattr(workers._watchdog, "note", note)
    raylet.suspend()
    fallback = threading.Timer(20.0, raylet.resume)
    fallback.start()
    assert workers.replace("env", 0) == [("env", 0)]
    assert re.fullmatch(r"env\[0\] has not started for \d+ s; alarm 300 s", notes[0])
    fallback.cancel()


def test_a_worker_whose_node_is_gone_is_not_waited_for(started: Started, monkeypatch):
    workers = started.workers
    assert workers.wait(loading(workers), "simulators", 120.0)  # of whatever has been replaced
    monkeypatch.setattr(workers._connection, "nodes", list)
    with pytest.raises(RunError, match="has left the cluster; the run does not fit on what is left"):
        workers.replace("env", 0)


def test_nothing_is_left_behind(started: Started):
    assert list(started.temp_dir.iterdir())
    started.workers.close()
    assert not list(started.temp_dir.iterdir()) and started.token.exists() == started.had_token


def test_a_long_temporary_folder_is_refused(tmp_path):
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    config = load(["run=debug", f"output_dir={tmp_path}", f"cluster.temp_dir={deep}"])
    with pytest.raises(RunError, match="bytes too long") as refusal:
        start_workers(config, plan(Workload(config), known_inventory(config)), ["env"], tmp_path)
    assert refusal.value.key == "cluster.temp_dir" and not list(deep.iterdir())
