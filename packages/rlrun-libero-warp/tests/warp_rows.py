"""Rows of the small suite of rlrun's tests, on MuJoCo Warp's CPU device and in MuJoCo; and starts of one's own."""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.config.registry import SIMULATORS
from rlrun.config.schema import EnvConfig
from tests.unit.envs.libero import small_suite

# Warp's entry point is this package's; without one (the tests run from the sources alone) the spec itself is named.
NAME = "libero_warp" if "libero_warp" in SIMULATORS.names() else "rlrun_libero_warp.spec:SPEC"
needs_warp = pytest.mark.skipif(find_spec("mujoco_warp") is None, reason="MuJoCo Warp is not installed")


def on_warp(*settings: str) -> list[str]:
    """Return the overrides of the world on Warp. Example of a setting: "task_ids=[0]"."""
    plain = ["env=libero", "policy.kind=cnn", f"env.simulator={NAME}"]
    return [*plain, *(f"env.libero_warp.{one}" for one in settings)]


def small(scenes: Path, *settings: str) -> list[str]:
    """Return the settings of the small suite."""
    return [f"suite={small_suite.NAME}", f"scenes={scenes}", *settings]


def config(scenes: Path, *settings: str) -> EnvConfig:
    return load([*on_warp(*small(scenes, *settings)), "env.image_size=32"]).env


def made(scenes: Path, num_envs: int, *settings: str, image_size: int = 32) -> Any:
    """Return rows of the small suite on Warp."""
    from rlrun_libero_warp.start import make_with_warp

    env = load([*on_warp(*small(scenes, *settings)), f"env.image_size={image_size}"]).env
    return make_with_warp(env, num_envs)


def made_in_mujoco(scenes: Path, num_envs: int, *settings: str, image_size: int = 32) -> Any:
    """Return the same rows in MuJoCo."""
    from rlrun.envs.libero.libero_env import make_libero

    own = [f"env.libero.{one}" for one in small(scenes, *settings, "pictures=fast")]
    return make_libero(load(["env=libero", "policy.kind=cnn", *own, f"env.image_size={image_size}"]).env, num_envs)


def write_starts(scenes: Path, task: int, starts: np.ndarray) -> None:
    """Give a task of the small suite other starts, [S, 1 + nq + nv]."""
    folder = scenes / small_suite.NAME / str(task)
    np.save(folder / "starts.npy", starts)
    described = json.loads((folder / "task.json").read_text())
    described["sha256"]["starts.npy"] = hashlib.sha256((folder / "starts.npy").read_bytes()).hexdigest()
    (folder / "task.json").write_text(json.dumps(described))
