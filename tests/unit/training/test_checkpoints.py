"""Checkpoints in the background: which one counts as the newest, and when the run waits."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config.recorded import CHECKPOINTS
from rlrun.data.checkpoint_folder import COMPLETE, FORMAT, best, folder_of_step, latest, mark_best
from rlrun.system.errors import RunError
from rlrun.training.checkpoints import Checkpoints, Progress


@contextmanager
def phase(*_: object):
    yield SimpleNamespace(seconds=0.0)


@contextmanager
def watched(controller: Controller, what: str, *_: object):
    controller.watched.append(what)
    try:
        yield
    finally:
        controller.watched.remove(what)


class Controller:
    """Writes an empty checkpoint when the test says so."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.watched: list[str] = []  # what the disk is watched for
        self.is_written = False
        self.stored: dict = {}  # the counters in each checkpoint
        self.failure: RunError | None = None

    def begin_save(self, root: str, driver_state: dict, is_best: bool) -> str:
        self.events.append(f"begin {driver_state['step']}{' best' if is_best else ''}")
        return str(folder_of_step(Path(root), driver_state["step"]))

    def is_saved(self) -> bool:
        return self.is_written

    def finish_save(self, folder: str) -> None:
        self.events.append(f"finish {Path(folder).name[-1]}")
        if self.failure is not None:
            raise self.failure

    def restore(self, folder: str) -> dict:
        return self.stored

    def verify_checkpoint(self, folder: str) -> None:
        self.events.append("verify")

    def latest_checkpoint(self, root: str, at_most: str | None) -> tuple[str, list[str]]:
        return str(latest(Path(root))), []

    def try_disk(self, folder: str, num_bytes: int) -> float:
        return 0.0

    def save(self, root: str, driver_state: dict, is_best: bool) -> str:
        self.events.append(f"save {driver_state['step']}")
        return str(folder_of_step(Path(root), driver_state["step"]))


def resuming(checkpoint: Path) -> SimpleNamespace:
    """Return what is read of the configuration of a run that resumes."""
    return SimpleNamespace(checkpoint=SimpleNamespace(resume=str(checkpoint)))


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def checkpoints(tmp_path: Path, controller: Controller) -> Checkpoints:
    session = SimpleNamespace(
        run_dir=tmp_path,
        controller=controller,
        phase=phase,
        stop=SimpleNamespace(saving=nullcontext),
        disk=SimpleNamespace(watched=partial(watched, controller), check_write=lambda *_: None),
        watchdog=SimpleNamespace(budgets=SimpleNamespace(usual=lambda *_: None)),
        console=SimpleNamespace(warning=controller.events.append),
        config=resuming(tmp_path / CHECKPOINTS / "step_00000004"),
    )
    return Checkpoints(session, lambda step, folder: controller.events.append(f"saved {step}"))


def at(step: int) -> Progress:
    return Progress(step=step, policy_version=step, base_policy="nowhere")


def complete(root: Path, step: int) -> Path:
    folder = folder_of_step(root, step)
    folder.mkdir(parents=True)
    (folder / COMPLETE).write_text(f"{FORMAT}\n")
    return folder


def test_a_return_to_an_older_checkpoint_makes_the_best_one_before_it_the_best(
    checkpoints: Checkpoints, controller: Controller, tmp_path: Path
) -> None:
    second, fourth, sixth = (complete(tmp_path / CHECKPOINTS, step) for step in (2, 4, 6))
    mark_best(sixth)
    assert checkpoints.to_resume() == fourth
    controller.stored = asdict(at(4)) | {"best_version": 2, "best_success_rate": 0.5}
    checkpoints.restore(fourth)
    assert best(tmp_path / CHECKPOINTS) == second


def test_a_repeated_command_goes_on_from_what_it_has_trained(
    checkpoints: Checkpoints, controller: Controller, tmp_path: Path
) -> None:
    elsewhere = complete(tmp_path / "other" / CHECKPOINTS, 4)
    checkpoints._session.config = resuming(elsewhere)
    assert checkpoints.to_resume() == elsewhere
    newest = complete(tmp_path / CHECKPOINTS, 8)
    assert checkpoints.to_resume() == newest
    assert controller.events[-1] == f"checkpoint.resume={elsewhere} began this run, which goes on from {newest}"


def test_training_goes_on_until_a_checkpoint_is_written(checkpoints: Checkpoints, controller: Controller) -> None:
    best = at(1)
    best.take_evaluation(0.5)
    checkpoints.begin(best)
    checkpoints.poll()
    assert controller.events == ["begin 1 best"] and checkpoints.newest is None
    assert controller.watched == ["checkpoint of step 1"], "also while training goes on"
    controller.is_written = True
    checkpoints.poll()
    checkpoints.poll()
    assert controller.events[1:] == ["finish 1", "saved 1"]
    assert checkpoints.step == 1 and checkpoints.newest is not None and controller.watched == []


def test_only_the_checkpoint_of_the_evaluated_policy_is_the_best(
    checkpoints: Checkpoints, controller: Controller
) -> None:
    """Not the next one that is saved, whose policy nobody evaluated."""
    progress = at(1)
    progress.take_evaluation(0.5)
    progress.step, progress.policy_version = 3, 3
    checkpoints.begin(progress)
    progress.take_evaluation(0.5)
    assert not progress.is_best, "the earlier one was as good"
    progress.take_evaluation(0.75)
    checkpoints.begin(progress)
    assert [event for event in controller.events if event.startswith("begin")] == ["begin 3", "begin 3 best"]


def test_what_was_best_is_known_after_a_resume(tmp_path: Path) -> None:
    progress = at(3)
    progress.take_evaluation(0.5)
    again = Progress.read(asdict(progress), tmp_path)
    assert again.is_best and again.best_version == 3
    former = {name: value for name, value in asdict(progress).items() if name != "best_version"}
    assert not Progress.read(former, tmp_path).is_best, "a former version did not note which policy was the best"
    with pytest.raises(RunError, match="damaged") as refused:
        Progress.read(asdict(progress) | {"best_version": 4}, tmp_path)
    assert "best_version is 4" in (refused.value.cause or "")


def test_the_next_checkpoint_waits_for_the_one_before(checkpoints: Checkpoints, controller: Controller) -> None:
    checkpoints.begin(at(1))
    checkpoints.begin(at(2))
    checkpoints.save(at(3))
    assert controller.events == [
        "begin 1",
        "finish 1",
        "saved 1",
        "begin 2",
        "finish 2",
        "saved 2",
        "save 3",
        "saved 3",
    ]


def test_one_that_could_not_be_written_is_told_once(checkpoints: Checkpoints, controller: Controller) -> None:
    controller.failure = RunError("full")
    checkpoints.begin(at(1))
    with pytest.raises(RunError, match="full"):
        checkpoints.wait_until_saved()
    checkpoints.wait_until_saved()
    assert checkpoints.newest is None and controller.events == ["begin 1", "finish 1"]
    assert controller.watched == []


@pytest.mark.parametrize("is_complete", [True, False])
def test_after_a_loss_it_counts_only_if_it_is_complete(
    checkpoints: Checkpoints, controller: Controller, tmp_path: Path, is_complete: bool
) -> None:
    checkpoints.begin(at(1))
    folder = folder_of_step(tmp_path / CHECKPOINTS, 1)
    if is_complete:
        folder.mkdir(parents=True)
        (folder / COMPLETE).touch()
    checkpoints.abandon()
    checkpoints.wait_until_saved()
    assert (checkpoints.newest == folder) is is_complete and controller.watched == []
    assert controller.events == ["begin 1", "saved 1"] if is_complete else ["begin 1"]


def test_a_checkpoint_holds_the_counters_it_was_saved_with_and_no_others(checkpoints: Checkpoints, tmp_path: Path):
    progress = at(1)
    assert not checkpoints.holds(progress)
    checkpoints.save(progress)
    assert checkpoints.holds(progress)
    progress.is_evaluation_owed = True
    assert not checkpoints.holds(progress)
    checkpoints.begin(at(2))
    assert not checkpoints.holds(at(2)), "it is not written yet"
    checkpoints.wait_until_saved()
    assert checkpoints.holds(at(2))
    checkpoints.newest = tmp_path / "another run" / CHECKPOINTS / "step_00000002"
    assert not checkpoints.holds(at(2)), "it is another run's, whose folder this run does not resume from"
