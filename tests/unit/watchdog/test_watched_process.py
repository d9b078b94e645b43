"""A child that looks after the run is started again when it ends, stops, or says nothing more."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rlrun.watchdog.sentinel_process import SentinelProcess, ask
from rlrun.watchdog.watched_process import WatchedProcess, ending


@pytest.fixture
def watched():
    """watched(is_well): a child, and a queue of what is said of it."""
    made = []

    def make(is_well=lambda process: True, code="import time; time.sleep(600)"):
        said = queue.Queue()
        start = lambda: subprocess.Popen([sys.executable, "-c", code])  # noqa: E731
        made.append(WatchedProcess("sentinel", start, is_well, 0.05, said.put))
        return made[-1], said

    yield make
    for child in made:
        child.close()
        assert child.process.poll() is not None


@pytest.mark.parametrize(
    ("number", "says"),
    [(signal.SIGKILL, "ended (killed by SIGKILL); started again"), (signal.SIGSTOP, "was stopped (state T); started")],
)
def test_killed_or_stopped_it_is_replaced_and_said(watched, number, says):
    child, said = watched()
    before = child.process
    before.send_signal(number)
    assert says in said.get(timeout=20)
    assert child.process.pid != before.pid and child.process.poll() is None and before.poll() is not None


def test_one_that_does_not_answer_is_replaced(watched, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rlrun.watchdog.watched_process.time", SimpleNamespace(monotonic=lambda: now[0]))
    child, said = watched(lambda process: False)
    before = child.process.pid
    now[0] = 14.0
    with pytest.raises(queue.Empty):
        said.get(timeout=0.5)
    now[0] = 16.0
    assert "has not answered for 16 s; started again" in said.get(timeout=20)
    assert child.process.pid != before


def test_one_that_ends_at_once_is_not_started_for_ever(watched):
    _, said = watched(code="raise SystemExit(3)")
    told = [said.get(timeout=60) for _ in range(21)]
    last = next(text for text in told if "not started again" in text)
    assert "ended (status 3), as 20 before it" in last
    with pytest.raises(queue.Empty):
        said.get(timeout=0.5)


def test_words_for_an_ending():
    assert ending(-9) == "killed by SIGKILL" and ending(1) == "status 1" and ending(-200) == "killed by signal 200"


def test_a_replaced_sentinel_serves_under_the_same_address(monkeypatch, caplog):
    monkeypatch.setattr("rlrun.watchdog.sentinel_process._PERIOD_S", 0.2)
    sentinel = SentinelProcess("127.0.0.1", [])
    try:
        ask(sentinel.where, "", {"env/0": os.getpid()}, False, 20.0)
        before = sentinel.pid
        os.kill(before, signal.SIGKILL)
        # while none serves, who asks waits for the next one
        told = ask(sentinel.where, "", {"env/0": os.getpid()}, False, 60.0)
        assert set(told["states"]) == {"env/0"} and sentinel.pid != before
        with open(f"/proc/{sentinel.pid}/cmdline") as words:
            assert sentinel.where.partition("/")[2] not in words.read()
    finally:
        sentinel.close()
