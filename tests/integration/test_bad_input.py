"""What a person sees who asks for the impossible: a message with the remedy, a true exit status, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.data import checkpoint_folder
from rlrun.system.errors import ExitStatus

pytestmark = pytest.mark.integration

SMALL = ["run=single_process", "num_steps=1", "logging.tensorboard=false", "logging.video_episodes=0"]


def run(program: str, *overrides: str) -> tuple[int, str]:
    whole = [sys.executable, "-m", f"rlrun.{program}", *SMALL, *overrides]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run folder with a checkpoint and a policy, and the cache beside it."""
    folder = tmp_path_factory.mktemp("finished")
    status, output = run("train", f"output_dir={folder}/run", f"cache_dir={folder}/cache")
    assert status == 0, output
    return folder


def refused(answer: tuple[int, str], status: ExitStatus, *words: str) -> None:
    code, output = answer
    assert code == status, output
    assert "Traceback" not in output and "remedy:" in output, output
    for word in words:
        assert word in output, output


def test_missing_checkpoint(tmp_path):
    answer = run("train", f"output_dir={tmp_path}", "checkpoint.resume=nowhere/step_00000007")
    refused(answer, ExitStatus.bad_input, "checkpoint.resume", "nowhere/step_00000007")


def test_missing_policy(tmp_path):
    refused(run("eval", "checkpoint=runs/gone", f"output_dir={tmp_path}"), ExitStatus.bad_input, "runs/gone")


def test_policy_of_other_shapes(finished, tmp_path):
    answer = run(
        "train", f"output_dir={tmp_path}", f"policy.path={finished}/run/policy", "env.embedded.controlled=[arm_right]"
    )
    refused(answer, ExitStatus.bad_input, "7", "8")


def test_checkpoint_of_another_configuration(finished):
    before = sorted((finished / "run" / "checkpoints").rglob("*"))
    made_with = (finished / "run" / "config.yaml").read_text()
    answer = run("train", f"output_dir={finished}/run", "num_steps=2", "policy.num_action_chunks=2")
    refused(answer, ExitStatus.bad_input, "num_action_chunks")
    assert sorted((finished / "run" / "checkpoints").rglob("*")) == before
    assert (finished / "run" / "config.yaml").read_text() == made_with


def test_corrupted_dataset(finished, tmp_path):
    (dataset,) = (finished / "cache").glob("demos-*")
    copy = tmp_path / "demos"
    subprocess.run(["cp", "-r", dataset, copy], check=True)
    (data,) = (copy / "data").rglob("*.parquet")
    os.truncate(data, data.stat().st_size // 2)
    answer = run("sft", f"output_dir={tmp_path}/run", f"demos.path={copy}")
    refused(answer, ExitStatus.bad_input, data.name)


@pytest.mark.parametrize(
    ("size", "status", "remedy"),
    [
        ("1m", ExitStatus.storage, "checkpoint.keep_last"),
        pytest.param("120k", ExitStatus.storage, "point output_dir", marks=pytest.mark.long),
        pytest.param("28k", ExitStatus.doctor, "point output_dir", marks=pytest.mark.long),
    ],
    ids=["saving", "logging", "starting"],
)
def test_full_disk(finished, tmp_path, size, status, remedy):
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", tmp_path]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("needs root to mount a small file system")
    try:
        disk = [f"output_dir={tmp_path}/run", f"cache_dir={finished}/cache"]
        refused(run("train", *disk), status, "No space left", remedy)
        assert checkpoint_folder.latest(tmp_path / "run" / "checkpoints") is None
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("setting", ["record.num_steps=1", "placement.offload=true"])
def test_what_cannot_happen_beside_an_update(setting):
    refused(run("train_async", setting), ExitStatus.bad_config, *setting.split("=")[:1], "Use rlrun.train.")
