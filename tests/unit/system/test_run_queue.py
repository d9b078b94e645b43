"""The time that a process waits for a core is told from the time that it sleeps or computes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from rlrun.system.run_queue import QueueTime, descendants, queue_seconds, scheduled_seconds

BUSY = "while True: pass"


def test_processes_that_share_one_core_wait_for_it_and_one_that_sleeps_does_not():
    core = min(os.sched_getaffinity(0))
    pinned = f"import os; os.sched_setaffinity(0, [{core}])\n{BUSY}"
    sleeps = "import time; time.sleep(600)"
    started = [subprocess.Popen([sys.executable, "-c", code]) for code in (pinned, pinned, sleeps)]
    try:
        pids = [process.pid for process in started]
        assert set(pids) <= set(descendants(os.getpid()))
        while min(sum(queue_seconds([pid]).values()) for pid in pids[:2]) < 0.3:
            time.sleep(0.1)
        before = sum(queue_seconds(pids[2:]).values())
        waited = sum(queue_seconds(pids[:2]).values())
        while sum(queue_seconds(pids[:2]).values()) < waited + 0.3:
            time.sleep(0.1)
        assert sum(queue_seconds(pids[2:]).values()) == before
        assert scheduled_seconds(descendants(os.getpid())) > 0.6
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_an_ended_process_has_no_times():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert queue_seconds([child.pid]) == {}


def test_the_longest_wait_of_a_thread_counts_within_one_silence():
    queue_time, seconds = QueueTime(), {"1/1": 100.0, "1/2": 0.0}
    sample = lambda: dict(seconds)  # noqa: E731
    assert queue_time.within("env/0", 4.0, 4.0, sample) == 0.0
    assert queue_time.within("env/0", 6.0, 6.0, sample) == 0.0  # the first sample
    seconds |= {"1/1": 103.0, "1/2": 1.0}
    assert queue_time.within("env/0", 10.0, 10.0, sample) == 3.0
    assert queue_time.within("env/0", 7.0, 20.0, sample) == 0.0  # another silence
    seconds["1/1"] += 50.0
    assert queue_time.within("env/0", 9.0, 22.0, sample) == 2.0  # not more than has passed
