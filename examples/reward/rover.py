"""A world of Gymnasium whose info has numbers: a rover on a plane drives to a target, and must not touch a wall."""

from __future__ import annotations

import gymnasium
import numpy as np

NEAR = 0.2  # m, from which the target counts as reached


class Rover(gymnasium.Env):
    """The rover is a point between -1 and 1 m; it sees its position and that of the target."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._at, self._target = self.np_random.uniform(-0.9, 0.9, (2, 2))
        return self._seen(), {}

    def step(self, action):
        wanted = self._at + 0.1 * np.asarray(action)
        self._at = np.clip(wanted, -1, 1)
        distance = float(np.linalg.norm(self._target - self._at))
        is_there = distance < NEAR
        info = {"distance": distance, "contacts": int((wanted != self._at).any()), "is_success": is_there}
        return self._seen(), float(is_there), is_there, False, info

    def render(self):
        picture = np.full((96, 96, 3), 230, np.uint8)
        for (x, y), colour in ((self._target, (40, 160, 60)), (self._at, (30, 30, 30))):
            column, row = np.int64(48 + 44 * np.array([x, -y]))
            picture[max(0, row - 4) : row + 4, max(0, column - 4) : column + 4] = colour
        return picture

    def _seen(self):
        return np.concatenate([self._at, self._target]).astype(np.float32)


gymnasium.register("Rover-v0", Rover)
