"""The driver's clock stops while the driver is stopped, so that no worker is blamed for that time."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from rlrun.config.loader import load
from rlrun.system.errors import RunError
from rlrun.system.status import WorkerStatus
from rlrun.system.telemetry import Telemetry
from rlrun.watchdog.probes import DriverClock
from rlrun.watchdog.watchdog import Watchdog


@pytest.fixture
def time_s(monkeypatch):
    time_s = [1000.0]
    monkeypatch.setattr("rlrun.watchdog.probes.time", SimpleNamespace(monotonic=lambda: time_s[0]))
    return time_s


@pytest.fixture
def clock(time_s):
    """An open clock without its thread: tests update it. `clock.notes(n)` waits for n notes."""
    notes, came = [], threading.Semaphore(0)

    def note(text):
        notes.append(text)
        came.release()

    clock = DriverClock(note)

    def first_notes(count):
        for _ in range(count):
            assert came.acquire(timeout=10)
        return notes

    clock.notes = first_notes
    clock.update()
    return clock


def test_it_runs_while_it_is_updated(clock, time_s):
    started = clock.seconds()
    for _ in range(60):
        time_s[0] += 1.5
        clock.update()
    assert clock.seconds() - started == 90.0 and clock.num_pauses == 0 and clock.since_pause_s == float("inf")


def test_a_pause_is_left_out_and_reported_once(clock, time_s):
    started = clock.seconds()
    time_s[0] += 61.0
    assert clock.seconds() - started == 1.0
    assert clock.since_pause_s == 0.0
    time_s[0] += 2.0
    assert clock.seconds() - started == 3.0 and clock.since_pause_s == 2.0
    assert clock.notes(1) == ["the driver itself was stopped for 61 s; no worker is blamed for that time"]
    time_s[0] += 300.0
    clock.update()
    assert clock.num_pauses == 2 and len(clock.notes(1)) == 2


def test_a_clock_that_was_not_opened_is_the_monotonic_one(time_s):
    clock = DriverClock(print)
    time_s[0] += 500.0
    assert clock.seconds() == 1500.0 and clock.num_pauses == 0


def test_the_thread_reads_the_time_once_a_second():
    clock = DriverClock(lambda text: None)
    clock.open()
    first = clock._read_at
    assert not threading.Event().wait(2.5)
    assert clock._read_at > first
    clock.close()


def status_of(worker, phase="idle", silence_s=0.0):
    return WorkerStatus(worker, "lab", 4711, phase, 0.0, silence_s=silence_s, silences={"simulate": (1, 1.0)})


@pytest.fixture
def watchdog(tmp_path, time_s):
    watchdog = Watchdog(load([f"cache_dir={tmp_path}", f"output_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"))
    watchdog.budgets.learn_driver("idle", 1.0)
    watchdog.clock.update()
    return watchdog


def test_after_a_pause_a_worker_asked_before_it_is_not_late(watchdog, time_s):
    """The request of an actor rank was still with the driver when the driver was stopped."""
    watchdog.board.put([status_of("actor/1")])
    check = watchdog.watch("update", lambda: watchdog.board.put([status_of("actor/1", silence_s=62.0)]))
    time_s[0] += 61.0
    check(["actor/1"])
    for second in range(1, 25):
        time_s[0] += 1.0
        watchdog.clock.update()
        watchdog.board.put([status_of("actor/1", silence_s=62.0 + second)])
        if second < 18:
            check(["actor/1"])
    with pytest.raises(RunError, match="was asked, has not begun"):
        check(["actor/1"])


def test_nor_after_the_main_thread_was_blocked(watchdog, time_s):
    """The main thread wrote to a disk that hung, while the other threads ran."""
    watchdog.board.put([status_of("actor/1")])
    check = watchdog.watch("update", lambda: None)
    for _ in range(60):
        time_s[0] += 1.0
        watchdog.clock.update()
    watchdog.board.put([status_of("actor/1", silence_s=60.0)])
    check(["actor/1"])


@pytest.mark.parametrize("is_answering", [True, False])
def test_nor_is_a_busy_or_unresponsive_worker_late_at_once(watchdog, time_s, is_answering):
    """When the whole machine was suspended, the clocks of its workers ran on as well."""
    watchdog.board.put([status_of("env/0", "simulate")])
    answers = [status_of("env/0", "simulate", 61.0)] if is_answering else []
    check = watchdog.watch("trajectories", lambda: watchdog.board.put(answers))
    time_s[0] += 61.0
    check(["env/0"])
    check(["env/0"])


def test_a_phase_with_a_pause_a_loss_or_a_warning_is_not_learned(watchdog, time_s):
    def usual_after(disturb):
        before = watchdog.num_disturbances
        disturb()
        watchdog.learn_phase("collect", 3.0, before)
        return watchdog.budgets.usual("driver", "collect", False)

    def pause():
        time_s[0] += 60.0
        watchdog.clock.update()

    def warn():
        for _ in range(20):
            time_s[0] += 1.0
            watchdog.clock.update()
        watchdog.board.put([status_of("env/0", "simulate", 15.0)])
        watchdog.watch("trajectories", lambda: None)(["env/0"])

    assert usual_after(pause) is None
    assert usual_after(lambda: watchdog.board.forget("env/1")) is None
    assert usual_after(warn) is None
    assert usual_after(lambda: None) == 3.0
