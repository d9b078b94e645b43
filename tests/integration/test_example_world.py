"""A simulator in somebody else's package: installed from outside, checked, and trained for some steps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "world"


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with the example in a folder on the path."""
    folder = tmp_path_factory.mktemp("outside")
    source = shutil.copytree(EXAMPLE, folder / "source")  # setuptools writes beside what it builds
    words = ["install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "pip", *words, str(source)], check=True, timeout=120)
    return os.environ | {"PYTHONPATH": str(folder / "site")}


def rlrun(command: str, *words: str, environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess:
    program = [sys.executable, "-m", f"rlrun.{command}", *words]
    return subprocess.run(program, env=environment, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


def test_it_is_found_and_explained(outside: dict[str, str], tmp_path: Path) -> None:
    told = rlrun("train", "env=reach", "--help", environment=outside, cwd=tmp_path).stdout
    assert "env.reach.goal_radius=0.2" in told and "of the target, in a plane of 2 by 2" in told
    wrong = rlrun("train", "env=reach", "env.reach.gaol_radius=1", environment=outside, cwd=tmp_path)
    assert wrong.returncode == 2 and "Did you mean 'env.reach.goal_radius'?" in wrong.stderr
    wide = rlrun("train", "env=reach", "policy.kind=cnn", "env.reach.step_size=0", environment=outside, cwd=tmp_path)
    assert wide.returncode == 2 and "env.reach.step_size" in wide.stderr


def test_it_keeps_the_contract(outside: dict[str, str], tmp_path: Path) -> None:
    done = rlrun("check_simulator", "reach", "env.image_size=32", environment=outside, cwd=tmp_path)
    assert done.returncode == 0 and "the contract holds" in done.stdout, done.stdout + done.stderr


@pytest.mark.long
def test_it_is_trained(outside: dict[str, str], tmp_path: Path) -> None:
    sizes = ["env.num_envs=4", "algorithm.horizon=8", "algorithm.global_batch_size=32", "actor.micro_batch_size=32"]
    kind = [
        "policy.kind=cnn",
        "policy.cnn.conv_channels=[4,8]",
        "policy.cnn.hidden_sizes=[16]",
        "evaluation.num_episodes=4",
    ]
    small = [*sizes, *kind, "num_steps=2", "cluster.kind=local", "output_dir=run"]
    done = rlrun("train", "run=cartpole", "env=reach", *small, environment=outside, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "goal_radius: 0.3" in (tmp_path / "run" / "config.yaml").read_text()


def test_a_file_beside_the_yaml(tmp_path: Path) -> None:
    """The same world without a package, as module:ATTRIBUTE, also in the simulator's own process."""
    shutil.copytree(EXAMPLE / "rlrun_reach", tmp_path / "conf" / "rlrun_reach")
    words = ["rlrun_reach.spec:SPEC", "--config-dir", "conf", "env.own_process=true"]
    done = rlrun("check_simulator", *words, environment=dict(os.environ), cwd=tmp_path)
    assert done.returncode == 0 and "the contract holds" in done.stdout, done.stdout + done.stderr
