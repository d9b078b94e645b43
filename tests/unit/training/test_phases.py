"""The seconds of phases, which become the metrics of a step."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace

from rlrun.training.phases import Phases
from rlrun.watchdog import probes
from rlrun.watchdog.probes import DriverClock


def test_seconds_are_summed_by_phase_until_they_are_drained() -> None:
    console = SimpleNamespace(begin=lambda *_: None, progress=lambda *_: None)
    clock = SimpleNamespace(seconds=time.monotonic)
    watchdog = SimpleNamespace(num_disturbances=0, learn_phase=lambda *_: None, clock=clock)
    driver, lock = SimpleNamespace(span=nullcontext), SimpleNamespace(require=lambda: None)
    phases = Phases(driver, lock, console, watchdog)
    for _ in range(2):
        with phases.phase("sync"):
            time.sleep(0.01)
    with phases.phase("collect", "env/chunk_steps", 8) as collecting:
        assert phases.goal is not None and phases.goal.total == 8
    seconds = phases.drain()
    assert seconds["sync"] >= 0.02 and seconds["collect"] == collecting.seconds and seconds["save"] == 0
    assert phases.goal is None and not phases.drain()


def test_a_time_in_which_the_driver_was_stopped_belongs_to_no_phase(monkeypatch) -> None:
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(probes.time, "monotonic", lambda: now.s)
    clock = DriverClock(lambda text: None)
    clock.update()
    watchdog = SimpleNamespace(num_disturbances=0, learn_phase=lambda *_: None, clock=clock)
    phases = Phases(SimpleNamespace(span=nullcontext), SimpleNamespace(require=lambda: None), None, watchdog)
    with phases.phase("save") as saving:
        now.s += 300.0
    assert saving.seconds == 1.0
