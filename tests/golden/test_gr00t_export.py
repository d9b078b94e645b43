"""Folders of GR00T N1.7 open both ways: LeRobot's own files open and act as rlrun does, and rlrun opens what they save.

LeRobot's files have an environment of their own (scripts/gr00t_environment.py); without it these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.export import export
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.gr00t.config import Pictures
from rlrun.policies.gr00t.pictures import pixels
from rlrun.policies.opening import open_policy
from tests.golden.test_gr00t import ENVIRONMENT, ROOT
from tests.numerics import assert_norm_close
from tests.unit.policies.flow.test_policies import P, new_policy

TOLERANCE, ROWS, ACT_S = 1e-5, 3, 280
SENTENCES = ["Turn on the radio!", "pick up the small red can", "turn on the radio"]
pytestmark = pytest.mark.skipif(
    not (ENVIRONMENT / "installed").exists(),
    reason="LeRobot's GR00T: python scripts/gr00t_environment.py .cache/gr00t CLONE_OF_LEROBOT",
)


def observed(side: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (ROWS, 1, side, side, 3), dtype=np.uint8)
    return pictures, generator.standard_normal((ROWS, P)).astype(np.float32)


@torch.no_grad()
def ours(policy: FlowPolicy) -> np.ndarray:
    pictures, state = observed(32)
    distribution, _ = policy(pictures, SENTENCES, state, temperature=1.0)
    return policy.decode_actions(distribution.most_likely().numpy())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gr00t_exports")


@pytest.fixture(scope="module")
def policies(place: Path) -> dict[str, FlowPolicy]:
    """Policies whose exports lie in `place`."""
    made = {
        "plain": new_policy("gr00t"),
        "deep": new_policy("gr00t", "policy.gr00t.expert_num_layers=6", "policy.gr00t.num_flow_steps=5", "seed=3"),
    }
    for name, policy in made.items():
        policy.save(place / f"{name}_run")
        export(place / f"{name}_run", place / name, None)
    return made


@pytest.fixture(scope="module")
def theirs(place: Path, policies: dict[str, FlowPolicy]) -> dict[str, np.ndarray]:
    pictures, state = observed(32)
    camera = policies["plain"].processor.config.cameras[0]
    shown = {camera: pictures[:, 0].transpose(0, 3, 1, 2), "observation.state": state}
    np.savez(place / "observed.npz", **shown, sentences=np.array(SENTENCES))
    script = ROOT / "tests" / "golden" / "gr00t_acts.py"
    folders = [place / name for name in policies]
    command = [ENVIRONMENT / "bin" / "python", "-W", "ignore", script, place / "observed.npz", place / "acted.npz"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command += folders
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ACT_S, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(place / "acted.npz") as stored:
        return dict(stored)


@pytest.mark.parametrize("name", ["plain", "deep"])
def test_their_files_open_ours_and_act_alike(
    name: str, policies: dict[str, FlowPolicy], theirs: dict[str, np.ndarray]
) -> None:
    """Strictly, through LeRobot's steps: prompt, pictures, statistics, embodiment."""
    assert_norm_close(theirs[name], ours(policies[name]), TOLERANCE)


@pytest.mark.parametrize("name", ["plain", "deep"])
def test_ours_opens_what_theirs_save(
    name: str, place: Path, policies: dict[str, FlowPolicy], theirs: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """Of tied weights safetensors keeps either name."""
    folder = tmp_path / "folder"
    shutil.copytree(place / f"{name}_run", folder)
    shutil.copy(place / f"{name}_saved.safetensors", folder / "model.safetensors")
    opened = open_policy(folder, torch.float32, "cpu")
    assert isinstance(opened, FlowPolicy)
    for key, tensor in policies[name].module.state_dict().items():
        assert torch.equal(opened.module.state_dict()[key], tensor), key


@pytest.mark.parametrize("side", [40, 64, 90])
def test_pictures_are_resized_as_theirs(side: int, theirs: dict[str, np.ndarray]) -> None:
    """Of noise, to two of 255 levels: both resize twice, and each rounds to whole numbers in an order of its own."""
    picture = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    sizes = Pictures((64, 64), None, 64, 0.95)
    for way, chosen in (("bicubic", sizes), ("area", replace(sizes, use_albumentations=True))):
        found = pixels(torch.from_numpy(picture)[None, None], chosen)[0, 0].permute(1, 2, 0)
        levels = (found.numpy() + 1.0) * 127.5 - theirs[f"{way} {side}"].astype(np.float32)
        assert np.abs(levels).max() < 2.01, way
        assert np.abs(levels).mean() < 0.25, way
