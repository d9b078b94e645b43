"""A Gymnasium environment with a Dict observation is trained without an adapter, and its bugs end the run at once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rlrun
from rlrun.system.errors import ExitStatus, RunError

WORLD = ["run=cartpole", "env.gymnasium.id=tests.standins.pick_the_side:PickTheSide-v0", "cluster.kind=local"]
SMALL = [
    *("env.num_envs=4", "algorithm.horizon=4", "algorithm.global_batch_size=16", "actor.micro_batch_size=16"),
    *("env.max_control_steps=4", "env.image_size=16", "evaluation.num_episodes=4", "num_steps=1"),
]
CNN = ["policy.kind=cnn", "policy.cnn.conv_channels=[4]", "policy.cnn.hidden_sizes=[8]"]


def trained(folder: Path, *overrides: str) -> ExitStatus:
    return rlrun.run(rlrun.load_config([*WORLD, *SMALL, f"output_dir={folder}", *overrides])).status


def test_a_dict_world_is_trained_without_an_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path, *CNN) == ExitStatus.ok
    described = json.loads((tmp_path / "policy" / "config.json").read_text())
    assert (described["num_images"], described["num_proprio"]) == (1, 2)
    told = capsys.readouterr().out
    assert told.count("image -> camera, state -> proprioception, task -> instruction") == 1


def test_a_world_without_images_is_refused_under_an_image_policy(tmp_path: Path) -> None:
    """By the doctor; on a machine that takes half a minute to make an environment, once the simulators are there."""
    with pytest.raises(RunError, match=r"environment spaces|The policy cnn needs images") as caught:
        trained(tmp_path, *CNN, "env.gymnasium.kwargs={has_image: false}")
    assert caught.value.exit_status in (ExitStatus.doctor, ExitStatus.bad_config)
    assert re.search("no images|0 images", str(caught.value.cause))


def test_the_same_fault_in_the_first_steps_of_several_rows_is_a_bug_of_the_world(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="breaks in the same way") as caught:
        trained(tmp_path, *CNN, "env.gymnasium.kwargs={fault: no such key}")
    error = caught.value
    assert error.exit_status is ExitStatus.bad_config
    assert "pick_the_side.py" in str(error.cause) and "KeyError: 'no such key'" in str(error.cause)
    assert "logs/driver-0.log" in str(error.remedy)
    assert "KeyError" in (tmp_path / "logs" / "driver-0.log").read_text()
