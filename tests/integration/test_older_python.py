"""The simulator's side under Python 3.10 and an older numpy, which Isaac Sim 4.5 pins, where they can be had."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rlrun.config.schema import EnvConfig
from rlrun.envs import r1pro
from rlrun.envs.make import make_env
from rlrun.envs.omnigibson.spec import OmniGibsonConfig
from rlrun.envs.r1pro_keys import RewardMode
from rlrun.envs.remote_env import RemoteEnv

pytestmark = [pytest.mark.integration, pytest.mark.long]

STANDINS = Path(__file__).parents[1] / "standins"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with what rlrun needs there, and the stand-in of OmniGibson 3.7."""
    folder = tmp_path_factory.mktemp("older")
    found = shutil.which("python3.10")
    if found is None or subprocess.run([found, "-c", "import venv, ensurepip"], check=False).returncode:
        pytest.skip("there is no Python 3.10 on this machine")
    subprocess.run([found, "-m", "venv", folder / "venv"], check=True, timeout=120)
    own = folder / "venv" / "bin" / "python"
    install = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for words in (["numpy<2", "msgpack"], ["--no-deps", "bddl==3.6.0"]):
        done = subprocess.run([*install, *words], capture_output=True, text=True, timeout=240, check=False)
        if done.returncode:
            pytest.skip(f"{words} cannot be installed under Python 3.10: {done.stderr[-200:]}")
    script = folder / "python"
    paths = f"{STANDINS / 'omnigibson_3_7'}:{STANDINS / 'shared'}"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {own} "$@"\n')
    script.chmod(0o755)
    return script


def test_an_episode_under_python_3_10(python: Path) -> None:
    own = OmniGibsonConfig(
        head_resolution=48,
        wrist_resolution=32,
        controlled=list(r1pro.ACTION_PARTS),
        cameras=list(r1pro.CAMERAS),
        reward=RewardMode.potential,
    )
    config = EnvConfig(
        simulator="omnigibson",
        image_size=32,
        max_control_steps=6,
        sections={"omnigibson": own},
    )
    env = make_env(config, 2, python=str(python))
    assert isinstance(env, RemoteEnv)
    assert env.about["python"].startswith("3.10.") and env.about["numpy"].startswith("1.")
    frames = env.reset(np.arange(2), np.arange(2))
    assert frames.images.shape == (2, 3, 32, 32, 3) and frames.images.std() > 2
    result = env.step_chunk(np.zeros((2, 8, 23), np.float32))
    assert result.truncated.all() and result.step_valid.sum() == 12
    env.close()
