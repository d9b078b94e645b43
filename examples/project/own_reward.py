"""The terms of your reward: functions of observation, action, info, and the reward that the world gave."""

from __future__ import annotations

from typing import Any

import numpy as np


def nearer(
    observation: dict[str, Any], action: np.ndarray, info: dict[str, Any], reward: float, previous: dict[str, Any]
) -> float:
    """Return how much nearer the target is than before the action. previous: the observation before it."""
    return _distance(previous) - _distance(observation)


def arrival(observation: dict[str, Any], action: np.ndarray, info: dict[str, Any], reward: float) -> float:
    """Return 1 at the target."""
    return float(info["success"])


def effort(observation: dict[str, Any], action: np.ndarray, info: dict[str, Any], reward: float) -> float:
    """Return the size of the action; its weight is negative."""
    return float(np.linalg.norm(action))


def _distance(observation: dict[str, Any]) -> float:
    x, y, target_x, target_y = observation["proprio"]
    return float(np.hypot(target_x - x, target_y - y))
