"""A Gymnasium environment with a picture, a state and a sentence, and an expert for it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NEAR, SPEED = 0.15, 0.2


class ReachTheMark(gymnasium.Env):
    """A point moves in a square and shall come near a mark, which the picture shows."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (32, 32, 3), np.uint8),
            "state": spaces.Box(-1, 1, (2,), np.float32),
            "task": spaces.Text(40),
        }
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.place, self.mark = self.np_random.uniform(-1, 1, (2, 2))
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        self.place = np.clip(self.place + SPEED * action, -1, 1)
        is_there = bool(np.linalg.norm(self.place - self.mark) < NEAR)
        return self._observation(), float(is_there), is_there, False, {"is_success": is_there}

    def _observation(self) -> dict[str, Any]:
        return {"image": self.render(), "state": self.place.astype(np.float32), "task": "go to the mark"}

    def render(self) -> np.ndarray:
        picture = np.full((32, 32, 3), 40, np.uint8)
        for (x, y), colour in ((self.mark, (40, 220, 40)), (self.place, (220, 40, 40))):
            across, down = (int(np.interp(number, (-1, 1), (1, 28))) for number in (x, y))
            picture[down : down + 3, across : across + 3] = colour
        return picture


def expert(env: gymnasium.Env, observation: dict[str, Any]) -> np.ndarray:
    """Go straight to the mark."""
    world: Any = env.unwrapped
    return np.clip((world.mark - observation["state"]) / SPEED, -1, 1)


class WithoutPictures(gymnasium.Env):
    """An environment of five steps that cannot draw, and knows no render mode."""

    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.number = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.number += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, self.number == 5, False, {}

    def close(self) -> None:
        raise RuntimeError("the window is gone")


gymnasium.register("ReachTheMark-v0", ReachTheMark)
gymnasium.register("WithoutPictures-v0", WithoutPictures)
