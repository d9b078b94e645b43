"""Learning from recorded steps again: bit for bit where nothing changed, told where something did, refused early."""

from __future__ import annotations

import shutil

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from rlrun.cluster.launch import Machines
from rlrun.config.loader import load
from rlrun.data.recording import RECORDING_FOLDER, Recording
from rlrun.system.errors import ExitStatus, RunError
from rlrun.train import train
from rlrun.training.replay import replay

pytestmark = pytest.mark.integration

SHAPES = ["env.num_envs=4", "algorithm.horizon=6", "algorithm.global_batch_size=24", "actor.micro_batch_size=24"]
SMALL = ["run=single_process", "logging.tensorboard=false", "logging.video_episodes=0", "evaluation.num_episodes=1"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of a run whose second and third step were recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    record = ["num_steps=3", "record.first_step=1", "record.num_steps=2", "algorithm.update_epochs=2", "actor.lr=1e-3"]
    assert train(load([*SMALL, *SHAPES, *record, f"output_dir={folder}", f"cache_dir={folder}/cache"])) == 0
    return folder


@pytest.fixture
def again(recorded, tmp_path, capsys):
    """Call with overrides; returns (exit status, console)."""

    def call(*overrides, path=recorded):
        same = ["algorithm.update_epochs=2", "actor.lr=1e-3", f"replay.path={path}"]
        status = replay(load([*SMALL, *SHAPES, *same, f"output_dir={tmp_path}/again", *overrides]), Machines)
        return status, capsys.readouterr().out

    return call


@pytest.fixture
def copied(recorded, tmp_path):
    """A recording that may be spoilt."""
    shutil.copytree(recorded / RECORDING_FOLDER, tmp_path / "copy")
    return Recording(tmp_path / "copy")


def test_the_actor_alone_comes_to_the_same_metrics_and_weights(again):
    status, told = again()
    assert status == ExitStatus.ok
    assert "replay of steps 1 to 2: as recorded" in told
    assert told.count("metrics as recorded") == told.count("weights as recorded") == 2


def test_the_weights_of_the_replay_are_compared(again, copied):
    """One bit in a recorded tensor is found."""
    path = copied.message(2, "actor/0", "weights", 0)
    arrays = load_file(path)
    arrays[".payload"][64] ^= 1
    save_file(arrays, path, metadata=_head(path))
    status, told = again(path=copied.folder)
    assert status == ExitStatus.differs
    assert "weights: 1 of" in told and "differences: 1;" in told


def test_another_learning_rate_is_told_and_found(again):
    status, told = again("actor.lr=3e-4")
    assert status == ExitStatus.differs
    assert "actor.lr was 0.001, is 0.0003: results may differ" in told
    assert "tensors differ, most of all" in told


def test_a_crash_in_the_update_can_be_had_again(again, copied):
    """The run ended while it learned: the trajectories are there, and no result."""
    shutil.rmtree(copied.worker_folder(2, "actor/0"))
    status, told = again(path=copied.folder)
    assert status == ExitStatus.ok and "step 2: the actor came through; no result of it was recorded" in told


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("env.num_envs=8", "Give the recorded run's: env.num_envs=4"),
        ("algorithm.horizon=12", "algorithm.horizon=6"),
        ("env.embedded.cameras=[zed_link,left_realsense_link]", "env.embedded.cameras=[zed_link]"),
    ],
)
def test_a_recording_of_another_configuration_is_refused(again, override, words):
    with pytest.raises(RunError) as caught:
        again(override)
    assert words in caught.value.remedy and caught.value.exit_status is ExitStatus.bad_config


def test_a_recording_of_other_ranks_is_refused(recorded, tmp_path):
    config = load(
        ["run=debug", *SHAPES, "actor.micro_batch_size=12", f"replay.path={recorded}", f"output_dir={tmp_path}"]
    )
    with pytest.raises(RunError, match=r"actor\.num_workers was 1"):
        replay(config, Machines)


def test_what_is_missing_or_cut_short_is_refused(again, copied, tmp_path):
    def refused(path=copied.folder) -> str:
        with pytest.raises(RunError) as caught:
            again(path=path)
        assert caught.value.exit_status is ExitStatus.bad_input and caught.value.remedy
        assert not (tmp_path / "again").exists()  # before anything starts
        return str(caught.value)

    assert "has no recording" in refused(tmp_path)
    trajectory = copied.message(1, "env/0", "trajectory", 0)
    trajectory.write_bytes(trajectory.read_bytes()[:-1])
    assert "cut short" in refused() and str(trajectory) in refused()
    trajectory.unlink()
    assert "missing" in refused()
    for step in (1, 2):
        shutil.rmtree(copied.folder / f"step-{step:06}")
    assert "holds no step" in refused()
    shutil.rmtree(copied.folder / "start")
    assert "no checkpoint" in refused()


def test_the_run_is_not_written_into(again, recorded):
    with pytest.raises(RunError, match="would write into the run"):
        again(f"output_dir={recorded}")


def _head(path):
    with safe_open(path, framework="numpy") as file:
        return file.metadata()
