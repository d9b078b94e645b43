"""A world of your own, as a Gymnasium environment: a point reaches a target."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

RADIUS = 0.15  # of the target
STEP = 0.2  # at an action of 1


class OwnReach(gymnasium.Env):
    """The plane is -1 to 1 in x and y; the policy sees the point and the target, and moves the point."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = Box(-1.0, 1.0, (4,), np.float32)
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self._point = self._target = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._point, self._target = self.np_random.uniform(-1, 1, (2, 2))  # the seed alone decides
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        before = self._distance()
        self._point = np.clip(self._point + STEP * action, -1, 1)
        is_there = self._distance() < RADIUS
        reward = before - self._distance() + float(is_there)
        return self._seen(), reward, is_there, False, {"success": is_there, "distance": self._distance()}

    def render(self) -> np.ndarray:
        y, x = np.mgrid[1:-1:96j, -1:1:96j]
        picture = np.full((96, 96, 3), 230, np.uint8)
        picture[np.hypot(x - self._target[0], y - self._target[1]) < RADIUS] = (220, 40, 40)
        picture[np.hypot(x - self._point[0], y - self._point[1]) < 0.08] = 0
        return picture

    def _seen(self) -> np.ndarray:
        return np.concatenate([self._point, self._target]).astype(np.float32)

    def _distance(self) -> float:
        return float(np.linalg.norm(self._target - self._point))


gymnasium.register("OwnReach-v0", OwnReach, max_episode_steps=30)
