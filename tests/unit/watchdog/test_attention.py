"""The driver's own time stands still while the driver does, and nobody is blamed for that."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from rlrun.config.loader import load
from rlrun.data.messages import WorkerStatus
from rlrun.observability.telemetry import Telemetry
from rlrun.system.errors import RunError
from rlrun.watchdog.attention import Attention
from rlrun.watchdog.watchdog import Watchdog


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("rlrun.watchdog.attention.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def attention(clock):
    """Open, but without its thread: a test looks for it. `notes` waits for as many."""
    told, came = [], threading.Semaphore(0)

    def note(text):
        told.append(text)
        came.release()

    attention = Attention(note)

    def notes(count):
        for _ in range(count):
            assert came.acquire(timeout=10)
        return told

    attention.notes = notes
    attention.look()
    return attention


def test_it_goes_on_while_somebody_looks(attention, clock):
    started = attention.seconds()
    for _ in range(60):
        clock[0] += 1.5
        attention.look()
    assert attention.seconds() - started == 90.0 and attention.num_gaps == 0 and attention.awake_s == float("inf")


def test_a_pause_is_left_out_and_told_once(attention, clock):
    started = attention.seconds()
    clock[0] += 61.0
    assert attention.seconds() - started == 1.0
    assert attention.awake_s == 0.0
    clock[0] += 2.0
    assert attention.seconds() - started == 3.0 and attention.awake_s == 2.0
    assert attention.notes(1) == ["the driver itself stood still for 61 s; nobody else is blamed for that time"]
    clock[0] += 300.0
    attention.look()
    assert attention.num_gaps == 2 and len(attention.notes(1)) == 2


def test_a_clock_that_nobody_opened_is_the_monotonic_one(clock):
    attention = Attention(print)
    clock[0] += 500.0
    assert attention.seconds() == 1500.0 and attention.num_gaps == 0


def test_the_thread_looks_once_a_second():
    attention = Attention(lambda text: None)
    attention.open()
    first = attention._looked
    assert not threading.Event().wait(2.5)
    assert attention._looked > first
    attention.close()


def told_by(worker, phase="idle", silence_s=0.0):
    return WorkerStatus(worker, "lab", 4711, phase, 0.0, silence_s=silence_s, silences={"simulate": (1, 1.0)})


@pytest.fixture
def watchdog(tmp_path, clock):
    watchdog = Watchdog(load([f"cache_dir={tmp_path}", f"output_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"))
    watchdog.budgets.learn_driver("idle", 1.0)
    watchdog.attention.look()
    return watchdog


def test_after_a_pause_who_was_asked_before_it_is_not_late(watchdog, clock):
    """An actor rank that was asked, and whose request lay with the driver."""
    watchdog.board.put([told_by("actor/1")])
    look = watchdog.looking("update", lambda: watchdog.board.put([told_by("actor/1", silence_s=62.0)]))
    clock[0] += 61.0
    look(["actor/1"])
    for second in range(1, 25):
        clock[0] += 1.0
        watchdog.attention.look()
        watchdog.board.put([told_by("actor/1", silence_s=62.0 + second)])
        if second < 18:
            look(["actor/1"])
    with pytest.raises(RunError, match="was asked, has not begun"):
        look(["actor/1"])


def test_nor_after_a_main_thread_that_did_not_look(watchdog, clock):
    """It wrote to a disk that hung, while the other threads went on."""
    watchdog.board.put([told_by("actor/1")])
    look = watchdog.looking("update", lambda: None)
    for _ in range(60):
        clock[0] += 1.0
        watchdog.attention.look()
    watchdog.board.put([told_by("actor/1", silence_s=60.0)])
    look(["actor/1"])


@pytest.mark.parametrize("is_telling", [True, False])
def test_nor_is_who_works_or_does_not_answer_at_once(watchdog, clock, is_telling):
    """Where the whole machine was asleep, their clocks went on as well."""
    watchdog.board.put([told_by("env/0", "simulate")])
    answers = [told_by("env/0", "simulate", 61.0)] if is_telling else []
    look = watchdog.looking("trajectories", lambda: watchdog.board.put(answers))
    clock[0] += 61.0
    look(["env/0"])
    look(["env/0"])


def test_a_phase_with_a_pause_a_loss_or_a_forewarning_is_not_learned(watchdog, clock):
    def usual_after(disturb):
        before = watchdog.num_disturbances
        disturb()
        watchdog.learn_phase("collect", 3.0, before)
        return watchdog.budgets.usual("driver", "collect", False)

    def pause():
        clock[0] += 60.0
        watchdog.attention.look()

    def forewarn():
        for _ in range(20):
            clock[0] += 1.0
            watchdog.attention.look()
        watchdog.board.put([told_by("env/0", "simulate", 15.0)])
        watchdog.looking("trajectories", lambda: None)(["env/0"])

    assert usual_after(pause) is None
    assert usual_after(lambda: watchdog.board.forget("env/1")) is None
    assert usual_after(forewarn) is None
    assert usual_after(lambda: None) == 3.0
