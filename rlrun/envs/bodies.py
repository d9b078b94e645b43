"""Positions of the bodies of a MuJoCo world, for rewards that need what a policy does not see."""

from __future__ import annotations

from functools import lru_cache

import mujoco
import numpy as np

_NUM_MODELS = 64  # whose names are kept


def body_positions(model: mujoco.MjModel, data: mujoco.MjData) -> dict[str, np.ndarray]:
    """Return the position of each named body, float64 [3], m."""
    positions = data.xpos.copy()
    return {name: positions[at] for at, name in _named_bodies(model)}


@lru_cache(_NUM_MODELS)
def _named_bodies(model: mujoco.MjModel) -> tuple[tuple[int, str], ...]:
    names = ((at, mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_BODY, at)) for at in range(model.nbody))
    return tuple((at, name) for at, name in names if name)
