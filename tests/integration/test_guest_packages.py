"""The example packages, installed from outside, pass their checks and train; no file of rlrun knows them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

SHORT = ["cluster.kind=local", "num_steps=2", "evaluation.num_episodes=2", "logging.tensorboard=false"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both packages, as pip installs them."""
    root = tmp_path_factory.mktemp("guests")
    shutil.copytree(ROOT / "examples", root / "examples")  # setuptools writes beside the sources
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", root / "site"]
    subprocess.run([*pip, root / "examples/policy", root / "examples/algorithm"], check=True, timeout=200)
    return root / "site"


def rlrun(site: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "rlrun.command", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("check", "name", "run"),
    [
        pytest.param("check-policy", "residual", "residual_pendulum", marks=pytest.mark.long),
        ("check-algorithm", "reinforce_plus", "reinforce_cartpole"),
    ],
)
def test_a_guest_is_checked_and_trains(site: Path, tmp_path: Path, check: str, name: str, run: str) -> None:
    assert f"{name} keeps its contract" in rlrun(site, check, name)
    rlrun(site, "train", f"run={run}", *SHORT, f"output_dir={tmp_path}/run")
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "run/policy/config.json").is_file()
