"""The order of what a training step does: when rollout workers get its weights, and when it is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config.schema import RunConfig
from rlrun.controller.controller import Batch
from rlrun.edges.reports import Collected, EnvTally
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training import lifecycle
from rlrun.training.lifecycle import Run, StopRequested
from rlrun.training.loop import asynchronous, synchronous

METRICS = {"num_nonfinite": 0.0, "num_optimizer_steps": 1.0}


class Controller:
    """Notes what is asked of it; the collection of step `lost_in` fails, and the update of step `broken_update`."""

    num_buckets = 1

    def __init__(self, events: list[str], lost_in: int | None, broken_update: int | None):
        self.events, self.lost_in, self.broken_update = events, lost_in, broken_update
        self.held_version = 0
        self.recovery = SimpleNamespace(drain=list, replace_actors=lambda failure: events.append("replace actors"))

    def start_collection(self, step: int, policy_version: int) -> int:
        self.events.append(f"reset {step + 1} for version {policy_version}")
        return step

    def sync_weights(self, version: int) -> None:
        self.events.append(f"sync {version}")
        self.held_version = version

    def form_actor_mesh(self) -> None:
        self.events.append("form mesh")

    def load_actor(self, policy_folder: str) -> None:
        self.events.append(f"load {policy_folder}")

    def join_rollout_workers(self) -> None:
        self.held_version = None

    def finish_collection(self, step: int) -> Batch:
        if step + 1 == self.lost_in:
            raise RunError("gone", exit_status=ExitStatus.stalled, worker="env/0")
        self.events.append(f"collected {step + 1}")
        tally = EnvTally(1, 0, 0, (), 0.0, ("press",))
        return Batch([Collected([], 1, self.held_version, tally)], [], [])

    def update(self, step: int, batch: Batch) -> dict[str, float]:
        if step + 1 == self.broken_update:
            raise RunError("gone", exit_status=ExitStatus.stalled, worker="env/0")
        self.events.append(f"update {step + 1}, age {step - batch.policy_version}")
        return dict(METRICS)


@contextmanager
def phase(*_: object):
    yield SimpleNamespace(seconds=0.0)


def events_of(
    loop: Callable[[Run], ExitStatus],
    monkeypatch: pytest.MonkeyPatch,
    lost_in: int | None = None,
    broken_update: int | None = None,
    is_first_evaluation_lost: bool = False,
) -> list[str]:
    """Return the events of a run of three steps, with an evaluation after the second.

    is_first_evaluation_lost: the run begins with an evaluation, during which an actor worker is lost.
    """
    events: list[str] = []
    config = RunConfig()
    config.num_steps, config.evaluation.every_steps, config.checkpoint.every_steps = 3, 2, 0
    config.logging.video_every_steps = 0
    session = SimpleNamespace(
        config=config,
        run_dir=Path(),
        watchdog=SimpleNamespace(keep_evidence=lambda failure: None),
        controller=Controller(events, lost_in, broken_update),
        phase=phase,
        stop=SimpleNamespace(is_requested=False, interruptible=nullcontext),
        console=SimpleNamespace(warning=lambda text: None, note=lambda text: None),
        flush_timeline=dict,
        phases=SimpleNamespace(drain=dict),
        sinks=SimpleNamespace(resumed=lambda step: None),
        driver=SimpleNamespace(step=None, span=nullcontext),
        folder=SimpleNamespace(require=lambda: None),
    )
    run = Run(session)
    run.progress.first_success_rate = -1.0 if is_first_evaluation_lost else 0.0
    run.progress.base_policy, run.actor_version = "first policy", 0
    is_lost = [is_first_evaluation_lost]
    monkeypatch.setattr(run, "log", lambda batch, metrics: events.append("log"))
    monkeypatch.setattr(run, "finish", lambda: events.append("finish"))
    monkeypatch.setattr(run.checkpoints, "save", lambda progress: events.append("save"))

    def evaluate(*_: object) -> SimpleNamespace:
        if is_lost.pop() if is_lost else False:
            raise RunError("gone", exit_status=ExitStatus.worker_lost, worker="actor/0")
        events.append("evaluate")
        return SimpleNamespace(success_rate=0.5)

    monkeypatch.setattr(lifecycle, "evaluate", evaluate)
    monkeypatch.setattr(lifecycle, "sentence", lambda record, env: str(record))
    with nullcontext() if lost_in is broken_update is None else pytest.raises(RunError, match="gone"):
        loop(run)
    return events


def test_env_workers_reset_while_weights_travel_and_an_evaluation_has_the_newest(monkeypatch) -> None:
    assert events_of(synchronous, monkeypatch) == [
        *("reset 1 for version 0", "collected 1", "update 1, age 0", "log"),
        *("reset 2 for version 1", "sync 1", "collected 2", "update 2, age 0", "log"),
        *("sync 2", "evaluate"),
        *("reset 3 for version 2", "collected 3", "update 3, age 0", "log", "finish"),
    ]


def test_the_asynchronous_loop_collects_with_the_weights_of_one_update_before(monkeypatch) -> None:
    assert events_of(asynchronous, monkeypatch) == [
        *("reset 1 for version 0", "collected 1"),
        *("reset 2 for version 0", "update 1, age 0", "collected 2", "log"),
        *("reset 3 for version 1", "sync 1", "update 2, age 1", "collected 3", "log"),
        *("sync 2", "evaluate", "update 3, age 1", "log", "finish"),
    ]


@pytest.mark.parametrize("loop", [synchronous, asynchronous])
def test_the_first_evaluation_is_repeated_after_the_loss_of_an_actor_worker(monkeypatch, loop) -> None:
    events = events_of(loop, monkeypatch, is_first_evaluation_lost=True)
    assert events[:6] == [
        *("replace actors", "form mesh", "load first policy", "sync 0", "evaluate"),
        "reset 1 for version 0",
    ]
    assert events[-1] == "finish"


@pytest.mark.parametrize("loop", [synchronous, asynchronous])
def test_a_run_that_cannot_go_on_saves_what_it_learned(monkeypatch, loop) -> None:
    assert events_of(loop, monkeypatch, lost_in=2)[-1] == "save"


def test_an_update_that_broke_is_not_saved(monkeypatch) -> None:
    events = events_of(synchronous, monkeypatch, broken_update=2)
    assert events[-1] == "collected 2"


@pytest.mark.parametrize("loop", [synchronous, asynchronous])
def test_a_signal_ends_the_run_between_two_steps(monkeypatch, loop) -> None:
    asked: list[int] = []

    def begin_step(run: Run) -> None:
        asked.append(run.progress.step)
        if run.progress.step == 2:
            raise StopRequested

    monkeypatch.setattr(Run, "begin_step", begin_step)
    with pytest.raises(StopRequested):
        events_of(loop, monkeypatch)
    assert asked == [0, 1, 2]
