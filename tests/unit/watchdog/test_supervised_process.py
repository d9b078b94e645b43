"""A supervised child is started again when it ends, is stopped, or no longer answers."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rlrun.watchdog.sentinel import SentinelProcess, request_evidence
from rlrun.watchdog.supervised import SupervisedProcess, describe_exit


@pytest.fixture
def supervised():
    """supervised(is_healthy) returns a child, and the queue of the reports about it."""
    made = []

    def make(is_healthy=lambda process: True, code="import time; time.sleep(600)"):
        said = queue.Queue()
        start = lambda: subprocess.Popen([sys.executable, "-c", code])  # noqa: E731
        made.append(SupervisedProcess("sentinel", start, is_healthy, 0.05, said.put))
        return made[-1], said

    yield make
    for child in made:
        child.close()
        assert child.process.poll() is not None


@pytest.mark.parametrize(
    ("number", "says"),
    [(signal.SIGKILL, "ended (killed by SIGKILL); started again"), (signal.SIGSTOP, "was stopped (state T); started")],
)
def test_a_killed_or_stopped_child_is_restarted_and_reported(supervised, number, says):
    child, said = supervised()
    before = child.process
    before.send_signal(number)
    assert says in said.get(timeout=20)
    assert child.process.pid != before.pid and child.process.poll() is None and before.poll() is not None


def test_an_unresponsive_child_is_restarted(supervised, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rlrun.watchdog.supervised.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("rlrun.watchdog.supervised.local_load_factor", lambda: 1.0)
    child, said = supervised(lambda process: False)
    before = child.process.pid
    now[0] = 14.0
    with pytest.raises(queue.Empty):
        said.get(timeout=0.5)
    now[0] = 16.0
    assert "has not answered for 16 s; started again" in said.get(timeout=20)
    assert child.process.pid != before


def test_a_child_that_ends_at_once_is_not_restarted_for_ever(supervised):
    _, said = supervised(code="raise SystemExit(3)")
    answers = [said.get(timeout=60) for _ in range(21)]
    last = next(text for text in answers if "not started again" in text)
    assert "ended (status 3), as 20 before it" in last
    with pytest.raises(queue.Empty):
        said.get(timeout=0.5)


def test_describe_exit():
    assert (
        describe_exit(-9) == "killed by SIGKILL"
        and describe_exit(1) == "status 1"
        and describe_exit(-200) == "killed by signal 200"
    )


def test_a_restarted_sentinel_serves_under_the_same_address(monkeypatch, caplog):
    monkeypatch.setattr("rlrun.watchdog.sentinel._HEALTH_PERIOD_S", 0.2)
    sentinel = SentinelProcess("127.0.0.1", [])
    try:
        request_evidence(sentinel.where, "", {"env/0": os.getpid()}, False, 20.0)
        before = sentinel.pid
        os.kill(before, signal.SIGKILL)
        # a request waits for the next sentinel while none serves
        answers = request_evidence(sentinel.where, "", {"env/0": os.getpid()}, False, 60.0)
        assert set(answers["states"]) == {"env/0"} and sentinel.pid != before
        with open(f"/proc/{sentinel.pid}/cmdline") as words:
            assert sentinel.where.partition("/")[2] not in words.read()
    finally:
        sentinel.close()
