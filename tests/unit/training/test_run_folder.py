"""A run folder that is deleted or renamed is told as that, with what is whole and how to go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.data.checkpoint_folder import COMPLETE
from rlrun.observability.records import record_losses
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.run_folder import RunFolder, new_folder, refuse_trained


def test_an_evaluation_does_not_write_to_the_folder_of_a_training(tmp_path: Path) -> None:
    """Its test starts would count as those of the run, and no checkpoint of it could be certified again."""
    refuse_trained(tmp_path)
    (tmp_path / "metrics.jsonl").touch()  # as another evaluation leaves it
    refuse_trained(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(RunError) as refused:
        refuse_trained(tmp_path)
    assert refused.value.key == "output_dir"


@pytest.fixture
def held(tmp_path: Path) -> Iterator[RunFolder]:
    checkpoint = tmp_path / "run" / "checkpoints" / "step_00000007"
    checkpoint.mkdir(parents=True)
    (checkpoint / COMPLETE).write_text("2 x\n")
    folder = RunFolder(tmp_path / "run", lambda place: f"resume={place}")
    yield folder
    folder.close()


def lost(folder: RunFolder) -> RunError:
    with pytest.raises(RunError) as raised:
        folder.require()
    assert raised.value.exit_status is ExitStatus.storage and "MB" not in str(raised.value)
    return raised.value


def test_two_runs_of_one_second_get_a_folder_each(tmp_path: Path) -> None:
    folders = [new_folder(tmp_path / "runs" / "now") for _ in range(3)]
    assert [folder.name for folder in folders] == ["now", "now-2", "now-3"]
    assert all(folder.is_dir() and folder.is_absolute() for folder in folders)


def test_a_folder_in_its_place_says_nothing(held: RunFolder) -> None:
    held.require()
    assert held.resume == f"resume={held.path}"


def test_a_renamed_folder_is_found(held: RunFolder, tmp_path: Path) -> None:
    held.path.rename(tmp_path / "other")
    told = lost(held)
    assert told.message == f"The run folder {held.path} is gone: it was renamed to {tmp_path / 'other'}."
    assert "checkpoints are whole, the newest is step_00000007" in (told.cause or "")
    assert told.resume == f"resume={tmp_path / 'other'}"
    held.path.mkdir()  # by somebody else: it is another folder
    assert "was renamed to" in lost(held).message


def test_a_renamed_parent_is_found(tmp_path: Path) -> None:
    (tmp_path / "a" / "run").mkdir(parents=True)
    folder = RunFolder(tmp_path / "a" / "run")
    (tmp_path / "a").rename(tmp_path / "b")
    told = lost(folder)
    assert str(tmp_path / "b" / "run") in told.message and "holds no checkpoint" in (told.cause or "")
    assert told.resume is None
    folder.close()
    folder.close()


def test_a_deleted_folder_is_no_full_disk(held: RunFolder) -> None:
    shutil.rmtree(held.path)
    told = lost(held)
    assert told.message == f"The run folder {held.path} is gone: it was deleted." and told.resume is None
    assert "nothing is wrong with the disk" in (told.remedy or "")


def test_records_do_not_bring_a_folder_back(held: RunFolder) -> None:
    from rlrun.edges.reports import WorkerLoss

    shutil.rmtree(held.path)
    with pytest.raises(FileNotFoundError):
        record_losses(held.path, 1, [WorkerLoss("env/0", "its process ended", 2)])
    assert not held.path.exists()


@pytest.mark.parametrize(
    ("made", "is_told"), [([0.0, 0.0, 0.0], True), ([0.0], False), ([0.0, 0.0, 64.0], False), ([], False)]
)
def test_a_run_without_an_optimizer_step_is_told(tmp_path: Path, made: list[float], is_told: bool) -> None:
    lines = [json.dumps({"step": number, "num_optimizer_steps": steps}) for number, steps in enumerate(made, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    folder = RunFolder(tmp_path)
    told: list[str] = []
    folder.warn_if_idle(told.append)
    folder.close()
    assert [line.split(" training steps")[0] for line in told] == (
        [f"no optimizer step was made in {len(made)}"] if is_told else []
    )
