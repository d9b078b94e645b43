"""A dataset with video of two cameras, in another order than the world's: imitated, and trained on, by its names."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.unit.data.lerobot_sets import drawn, made, written

pytestmark = pytest.mark.integration
TOP, SIDE = "observation.images.top", "observation.images.side"
ROOT = Path(__file__).parents[2]
RUN = [
    *("cluster.kind=local", "env.simulator=gymnasium", "env.image_size=16", "env.num_envs=2"),
    *("env.gymnasium.id=tests.unit.controller.two_cameras:TwoCameras-v0", "env.gymnasium.instruction=open the drawer"),
    *("env.max_control_steps=4", "num_steps=1", "sft.num_steps=2", "sft.batch_size=8", "evaluation.num_episodes=2"),
    *("algorithm.horizon=4", "algorithm.global_batch_size=8", "logging.video_episodes=0"),
]


def dataset(folder: Path, scale: float) -> Path:
    made_here = made(videos=(TOP, SIDE), cameras=())
    made_here.columns["action"] = (scale * made_here.columns["action"]).astype(np.float32)
    made_here.videos = {key: np.stack([drawn(i, (16, 16)) for i in range(15)]) for key in (TOP, SIDE)}
    made_here.features |= {key: made_here.features[key] | {"shape": [16, 16, 3]} for key in (TOP, SIDE)}
    return written(folder, dataclasses.replace(made_here))


def train(folder: Path, policy: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlrun.train", f"policy={policy}", *RUN, f"cache_dir={folder}/cache", *overrides]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )


def test_a_small_policy_imitates_it_through_the_worlds_cameras(tmp_path: Path) -> None:
    found = train(tmp_path, "small", f"demos.path={dataset(tmp_path / 'set', 0.05)}", f"output_dir={tmp_path}/run")
    told = found.stdout + found.stderr
    assert found.returncode == 0, told
    assert "cameras, data set → world: side → pixels.side, top → pixels.top" in told
    described = json.loads((tmp_path / "run/policy/config.json").read_text())
    assert described["camera_names"] == ["pixels.side", "pixels.top"]


@pytest.mark.long
def test_its_cameras_come_in_the_worlds_order(tmp_path: Path) -> None:
    found = train(tmp_path, "smolvla", f"demos.path={dataset(tmp_path / 'set', 0.05)}", f"output_dir={tmp_path}/run")
    told = found.stdout + found.stderr
    assert found.returncode == 0, told
    assert "cameras, data set → world: side → pixels.side, top → pixels.top" in told
    features = json.loads((tmp_path / "run/policy/config.json").read_text())["input_features"]
    assert [name for name in features if "images" in name] == [SIDE, TOP]
    swapped = [f"policy.path={tmp_path}/run/policy", "env.gymnasium.image_keys=[pixels.top,pixels.side]"]
    again = train(tmp_path, "smolvla", *swapped, f"output_dir={tmp_path}/again")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "cameras: pixels.side → observation.images.side" in again.stdout + again.stderr


@pytest.mark.long
def test_actions_of_another_unit_are_refused_before_imitation(tmp_path: Path) -> None:
    found = train(tmp_path, "small", f"demos.path={dataset(tmp_path / 'set', 100.0)}")
    assert found.returncode == 5 and "lie outside of -1 to 1" in found.stderr and "Traceback" not in found.stderr
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").glob("sft-*"))
