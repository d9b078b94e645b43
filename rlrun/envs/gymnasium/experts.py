"""Scripted experts of Gymnasium's classic environments, for recipes that begin with demonstrations.

`env.gymnasium.expert` names one by its place, and no other module imports them.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def mountain_car(env: Any, observation: np.ndarray) -> np.ndarray:
    """Swing up MountainCarContinuous by pushing the way the car moves. observation: position, velocity."""
    return np.array([1.0 if observation[1] >= 0 else -1.0], np.float32)
