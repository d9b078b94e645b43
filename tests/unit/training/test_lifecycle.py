"""Which losses of actor workers the loop outlives, and that it ends with the others."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config.schema import RunConfig
from rlrun.controller.recovery import Recovery
from rlrun.edges.reports import EpisodeReport
from rlrun.observability.records import summarize_evaluation
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training import lifecycle
from rlrun.training.lifecycle import Run
from rlrun.training.loop import synchronous
from rlrun.training.run_folder import RunFolder


def lost(worker: str = "actor/1", status: ExitStatus = ExitStatus.worker_lost) -> RunError:
    return RunError(f"{worker}: its process ended", exit_status=status, worker=worker)


class Controller:
    """Fails where `failures` says, once each, in order of the calls of `form_actor_mesh`; None: goes well."""

    def __init__(self, config: RunConfig, failures: list[RunError | None]):
        workers = SimpleNamespace(sizes={"actor": 2}, replace=lambda role, rank: [(role, rank)])
        self.recovery = Recovery(config, workers, lambda text: None)
        self.failures, self.loaded = failures, []

    def form_actor_mesh(self):
        failure = self.failures.pop(0)
        if failure is not None:
            raise failure

    def load_actor(self, folder: str):
        self.loaded.append(folder)

    def join_rollout_workers(self):
        pass

    def sync_weights(self, version: int):
        pass


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Call with the failures of the steps, and of the restarts; returns (run, its end)."""

    def call(steps: list[RunError | None], restarts: list[RunError | None], max_restarts: int):
        config = RunConfig()
        config.recovery.max_actor_restarts = max_restarts
        session = SimpleNamespace(
            config=config,
            controller=Controller(config, restarts),
            console=SimpleNamespace(**dict.fromkeys(("note", "warning", "result"), lambda text: None)),
            run_dir=tmp_path,
            phase=lambda name: nullcontext(),
            stop=SimpleNamespace(interruptible=nullcontext, saving=nullcontext, announce=lambda note: None, name=None),
            resume_command="",
            flush_timeline=dict,
            phases=SimpleNamespace(drain=dict),
            sinks=SimpleNamespace(resumed=lambda step: None),
            driver=SimpleNamespace(step=None, span=nullcontext),
            folder=RunFolder(tmp_path),
        )
        run = Run(session)
        run.progress.base_policy = "first"

        def run_pending_evaluation() -> None:
            failure = steps.pop(0)
            if failure is not None:
                raise failure

        monkeypatch.setattr(run, "load", lambda: None)
        monkeypatch.setattr(run, "run_pending_evaluation", run_pending_evaluation)
        monkeypatch.setattr(run, "is_over", lambda: True)
        monkeypatch.setattr(run, "finish", lambda: ExitStatus.ok)
        return run

    return call


def test_a_rank_that_is_lost_again_while_the_group_restarts_counts_as_another(training):
    run = training([lost(), None], [lost("actor/0"), None], max_restarts=2)
    assert run.complete(synchronous) is ExitStatus.ok and run.controller.loaded == ["first"]
    assert [loss.worker for loss in run.controller.recovery.drain()] == ["actor/1", "actor/0"]


def test_one_loss_too_many_ends_the_run(training):
    with pytest.raises(RunError) as raised:
        training([lost(), lost()], [None], max_restarts=1).complete(synchronous)
    assert raised.value.key == "recovery.max_actor_restarts"


@pytest.mark.parametrize("status", [ExitStatus.unexpected, ExitStatus.storage])
def test_what_is_no_loss_ends_the_run(training, status):
    final = lost(status=status)
    with pytest.raises(RunError) as raised:
        training([final], [], max_restarts=5).complete(synchronous)
    assert raised.value is final


def test_the_loss_of_the_run_folder_explains_every_failure(training, tmp_path: Path):
    run = training([lost()], [None], max_restarts=5)
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    with pytest.raises(RunError, match="was renamed to") as raised:
        run.complete(synchronous)
    assert raised.value.exit_status is ExitStatus.storage and run.controller.loaded == []


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_signal_saves_what_no_checkpoint_holds_and_saves_it_once(training, tmp_path, is_saved):
    run, saves = training([], [], max_restarts=0), []
    run.actor_version = 0
    run.checkpoints = SimpleNamespace(
        wait_until_saved=lambda: None,
        holds=lambda progress: is_saved,
        newest=tmp_path,
        save=lambda progress: saves.append(tmp_path),
    )
    assert run.stop() is ExitStatus.preempted and run.session.stop.handled
    assert saves == ([] if is_saved else [tmp_path])


@pytest.mark.parametrize(("is_kept", "every", "saved"), [(True, 3, [2, 3]), (False, 3, [3]), (True, 0, [])])
def test_the_policy_of_the_best_evaluation_is_saved_at_once(training, monkeypatch, is_kept, every, saved):
    """Not the policy of the next regular checkpoint, which nobody evaluated."""
    run, saves = training([], [], max_restarts=0), []
    rates = {0: 0.25, 2: 0.5, 4: 0.25}

    def evaluate(session, step, *_):
        outcomes = [True, False, False, False] if rates[step] == 0.25 else [True, True, False, False]
        reports = [
            EpisodeReport(0, seed, is_success, 1.0, 1.0, 5, is_success, not is_success, False)
            for seed, is_success in enumerate(outcomes)
        ]
        return summarize_evaluation(step, reports)

    def save(progress):
        saves.append((progress.step, progress.is_best))

    monkeypatch.setattr(lifecycle, "evaluate", evaluate)
    run.controller.held_version = None
    run.checkpoints = SimpleNamespace(save=save)
    run.config.num_steps, run.config.evaluation.every_steps = 10, 2
    run.config.checkpoint.is_best_kept, run.config.checkpoint.every_steps = is_kept, every
    run.controller.num_buckets = 1
    run.session.phase = lambda *_: nullcontext()
    run.evaluate(has_video=False)
    for version in (1, 2, 3, 4):
        run.progress.step = run.progress.policy_version = version
        run.evaluate_and_save_if_due()
    assert saves == [(step, step == 2) for step in saved]
    assert run.progress.best_success_rate == 0.5


def test_after_a_return_to_the_first_policy_its_evaluation_is_still_the_best(training):
    run = training([lost(), None], [None], max_restarts=1)
    run.progress.first_success_rate = 0.75
    run._take_demonstrations = lambda: None
    assert run.complete(synchronous) is ExitStatus.ok
    assert (run.progress.best_success_rate, run.progress.best_version) == (0.75, 0)
