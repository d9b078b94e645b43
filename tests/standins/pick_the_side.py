"""A Gymnasium environment with a Dict observation, as robotics packages have them. `fault` breaks its first step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class PickTheSide(gymnasium.Env):
    """The picture shows a bright half; the action is to name its side. One step is an episode."""

    def __init__(self, fault: str | None = None, has_image: bool = True, render_mode: str | None = None):
        self.render_mode, self._fault = render_mode, fault
        seen: dict[str, spaces.Space] = {"image": spaces.Box(0, 255, (16, 16, 3), np.uint8)} if has_image else {}
        seen |= {"state": spaces.Box(-1, 1, (2,), np.float32), "task": spaces.Text(40)}
        self.observation_space, self.action_space = spaces.Dict(seen), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self._side = int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        if self._fault == "breakpoint":
            breakpoint()
        elif self._fault:
            raise KeyError(self._fault)
        is_right = int(action) == self._side
        return self._observation(), float(is_right), True, False, {"success": is_right}

    def _observation(self) -> dict[str, Any]:
        image = np.full((16, 16, 3), 40, np.uint8)
        image[:, 8 * self._side : 8 * self._side + 8] = 220
        seen = {"image": image, "state": np.zeros(2, np.float32), "task": "name the bright side"}
        return {name: seen[name] for name in self.observation_space.spaces}  # type: ignore[attr-defined]

    def render(self) -> np.ndarray:
        return np.zeros((16, 16, 3), np.uint8)


gymnasium.register("PickTheSide-v0", PickTheSide)
