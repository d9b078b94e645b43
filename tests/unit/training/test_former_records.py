"""A run that starts anew in the folder of a former one says so, and mixes with nothing of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.observability.run_files import METRICS, num_former, read_metrics
from rlrun.training.run_folder import archive_previous_run, steps_to_repeat

LEFT = ("config.yaml", "episodes.jsonl", "timeline.json", "tensorboard/events", "videos/a.mp4", "wandb_id.txt")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run that has done six steps, with a checkpoint after the fourth."""
    for name in LEFT:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / METRICS).write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 7)))
    (tmp_path / "checkpoints" / "step_00000004").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    return tmp_path


def test_a_run_that_resumes_keeps_its_records(run_dir: Path) -> None:
    for resume in ("auto", str(run_dir / "checkpoints" / "step_00000004")):
        assert archive_previous_run(run_dir, load(["run=debug", f"checkpoint.resume={resume}"])) is None
    assert len(read_metrics(run_dir)) == 6 and num_former(run_dir) == 0
    assert steps_to_repeat(run_dir, 4) == "; metrics.jsonl holds steps up to 6, of which those after 4 are repeated"
    assert steps_to_repeat(run_dir, 6) == ""


def test_lost_checkpoints_are_told_and_the_records_moved(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "checkpoints")
    told = archive_previous_run(run_dir, load(["run=debug"]))
    assert told is not None and told.startswith(
        "metrics.jsonl holds 6 steps, but there is no checkpoint: the run starts at step 1;"
    )
    assert str(run_dir / "former_1") in told
    assert read_metrics(run_dir) == [] and len(read_metrics(run_dir / "former_1")) == 6
    assert all((run_dir / "former_1" / name).exists() and not (run_dir / name).exists() for name in LEFT)
    assert archive_previous_run(run_dir, load(["run=debug"])) is None, "nothing is left to mix with"


def test_a_run_that_must_start_anew_leaves_no_checkpoint_to_resume_later(run_dir: Path) -> None:
    config = load(["run=debug", "checkpoint.resume=null"])
    assert "checkpoint.resume=null" in (archive_previous_run(run_dir, config) or "")
    assert not (run_dir / "checkpoints").exists()
    assert (run_dir / "former_1" / "checkpoints" / "step_00000004").is_dir()
    (run_dir / METRICS).write_text('{"step": 1}\n')
    assert "holds 1 step," in (archive_previous_run(run_dir, config) or "") and num_former(run_dir) == 2


def test_a_new_folder_says_nothing(tmp_path: Path) -> None:
    for resume in ("auto", "null"):
        assert archive_previous_run(tmp_path, load(["run=debug", f"checkpoint.resume={resume}"])) is None
    assert not list(tmp_path.iterdir())


def test_what_the_new_run_begins_with_stays(run_dir: Path) -> None:
    (run_dir / "policy").mkdir()
    (run_dir / "former_7").mkdir()
    (run_dir / "former_glory").mkdir()
    config = load(["run=debug", "checkpoint.resume=null", f"policy.path={run_dir / 'policy'}"])
    assert str(run_dir / "former_8") in (archive_previous_run(run_dir, config) or "")
    assert (run_dir / "policy").is_dir() and (run_dir / "former_8" / "checkpoints").is_dir()
