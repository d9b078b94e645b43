"""The order of what a training step does: when it is told of, and when rollout workers get its weights."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from rlrun.config.schema import RunConfig
from rlrun.controller.controller import Batch
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus
from rlrun.train import Training
from rlrun.train_async import AsyncTraining
from rlrun.training import evaluation

METRICS = {"num_nonfinite": 0.0, "num_optimizer_steps": 1.0}


class Controller:
    """Notes what is asked of it; `lost_in` is the step that cannot even begin."""

    num_buckets = 1

    def __init__(self, events: list[str], is_concurrent: bool, lost_in: int | None = None):
        self.events, self.lost_in = events, lost_in
        self.processes = SimpleNamespace(is_concurrent=is_concurrent)
        self.recovery = SimpleNamespace(drain=list)

    def begin_collect(self, step: int, next_version: int | None = None) -> int:
        if step + 1 == self.lost_in:
            raise RunError("gone", exit_status=ExitStatus.stalled, worker="env/0")
        self.events.append(f"reset {step + 1}" + ("" if next_version is None else f", wait for {next_version}"))
        return step

    def open(self, step: int) -> None:
        self.events.append(f"collect {step + 1}")

    def collected(self, step: int) -> Batch:
        return Batch([], 1, 0, step, [])

    def update(self, step: int, batch: Batch, next_version: int | None = None) -> dict[str, float]:
        self.events.append(f"update {step + 1}")
        return dict(METRICS)

    def sync_weights(self, version: int) -> None:
        self.events.append(f"sync {version}")


@contextmanager
def phase(*_: object):
    yield SimpleNamespace(seconds=0.0)


def events_of(kind: type[Training] = Training, is_concurrent: bool = True, lost_in: int | None = None) -> list[str]:
    """Of a run of three steps, with an evaluation after the second."""
    events: list[str] = []
    config = RunConfig()
    config.num_steps, config.evaluation.every_steps, config.checkpoint.every_steps = 3, 2, 0
    config.logging.video_every_steps = 0
    controller = Controller(events, is_concurrent, lost_in)
    session = SimpleNamespace(
        config=config, controller=controller, phase=phase, stop=SimpleNamespace(is_requested=False)
    )
    session.console = SimpleNamespace(warning=lambda text: None, note=lambda text: None)
    training = kind(session)
    training.progress.first_success_rate = 0.0
    training.begin = lambda: None
    session.stop.at_once = phase
    training.tell = lambda step, *_: events.append(f"tell {step}")
    training.finish = lambda: events.append("finish")
    training.rescue = lambda: events.append("rescue")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "evaluate", lambda *_: events.append("evaluate") or SimpleNamespace(success_rate=0.5))
        patch.setattr(evaluation, "sentence", str)
        with nullcontext() if lost_in is None else pytest.raises(RunError):
            training.run()
    return events


def without(events: list[str], *words: str) -> list[str]:
    """Those that begin with none of the words."""
    return [event for event in events if not event.startswith(words)]


def test_a_step_is_told_of_while_the_next_one_is_collected_and_before_an_evaluation_or_the_end() -> None:
    first = ["collect 1", "update 1", "collect 2", "tell 1", "update 2"]
    expected = [*first, "tell 2", "evaluate", "collect 3", "update 3", "tell 3", "finish"]
    assert without(events_of(), "reset", "sync") == expected


def test_env_workers_reset_while_weights_travel_and_an_evaluation_has_the_newest() -> None:
    events = without(events_of(), "tell", "update")
    assert events[:5] == ["reset 1", "collect 1", "reset 2, wait for 1", "sync 1", "collect 2"]
    assert events[5:] == ["sync 2", "evaluate", "reset 3", "collect 3", "finish"]


def test_train_async_collects_with_the_weights_of_one_update_before() -> None:
    events = without(events_of(AsyncTraining), "tell", "reset")
    first = ["collect 1", "collect 2", "update 1", "sync 1", "collect 3", "update 2"]
    assert events == [*first, "sync 2", "evaluate", "update 3", "finish"]


def test_where_nothing_goes_on_beside_the_driver_it_is_told_at_once() -> None:
    events = without(events_of(is_concurrent=False), "reset", "sync")
    assert events[:5] == ["collect 1", "update 1", "tell 1", "collect 2", "update 2"]


def test_a_run_that_breaks_has_told_of_every_step_that_it_took() -> None:
    events = without(events_of(lost_in=2), "reset", "sync")
    assert events == ["collect 1", "update 1", "tell 1", "rescue"]


def test_train_async_tells_of_every_step_once() -> None:
    events = events_of(AsyncTraining)
    assert [event for event in events if event.startswith("tell")] == ["tell 1", "tell 2", "tell 3"]
    assert events.index("tell 2") < events.index("evaluate") and events[-1] == "finish"
