"""MuJoCo Warp on its CPU device, for tests: rows of the small suite, and starts of one's own."""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.config.schema import EnvConfig
from tests.unit.envs.libero import small_suite

needs_warp = pytest.mark.skipif(
    find_spec("mujoco_warp") is None, reason="MuJoCo Warp is not installed: pip install 'rlrun[warp]'"
)


def config(scenes: Path, *keys: str) -> EnvConfig:
    own = [f"env.libero.suite={small_suite.NAME}", f"env.libero.scenes={scenes}", "env.image_size=32"]
    return load(["env=libero", "policy.kind=cnn", *own, "env.libero.pictures=fast", *keys]).env


def made(scenes: Path, num_envs: int, *keys: str) -> Any:
    """Return rows of the small suite on Warp."""
    from rlrun.envs.libero.libero_env import make_libero

    return make_libero(config(scenes, "env.libero.physics=warp", *keys), num_envs)


def made_in_mujoco(scenes: Path, num_envs: int, *keys: str) -> Any:
    """Return the same rows in MuJoCo."""
    from rlrun.envs.libero.libero_env import make_libero

    return make_libero(config(scenes, *keys), num_envs)


def write_starts(scenes: Path, task: int, starts: np.ndarray) -> None:
    """Give a task of the small suite other starts, [S, 1 + nq + nv]."""
    folder = scenes / small_suite.NAME / str(task)
    np.save(folder / "starts.npy", starts)
    described = json.loads((folder / "task.json").read_text())
    described["sha256"]["starts.npy"] = hashlib.sha256((folder / "starts.npy").read_bytes()).hexdigest()
    (folder / "task.json").write_text(json.dumps(described))
