"""The terms of a reward: functions of observation, action, info, and the reward that the simulator gave."""

from __future__ import annotations

import numpy as np


def progress(observation, action, info, reward, previous):
    """Return how much nearer the target is than before the action, m. `previous`: the observation before."""
    return _distance(previous) - _distance(observation)


def touch(observation, action, info, reward):
    """Return the contacts with a wall, which only the world's info has."""
    return info["contacts"]


def arrival(observation, action, info, reward):
    """Return the reward of the simulator itself."""
    return reward


def _distance(observation):
    x, y, target_x, target_y = observation["proprio"]
    return np.hypot(target_x - x, target_y - y)
