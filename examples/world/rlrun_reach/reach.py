"""The world: one environment, one episode at a time."""

from __future__ import annotations

import numpy as np

from rlrun.envs.rows import SingleEnv, Step
from rlrun_reach.spec import ReachConfig

COLOURS = {"red": (220, 40, 40), "blue": (40, 40, 220)}


class Reach(SingleEnv):
    """A point moves on a plane, -1 to 1 in x and y, until it is inside the target."""

    def __init__(self, own: ReachConfig, image_size: int):
        self._own, self._size = own, image_size
        self._colour = "red"
        self._point = self._goal = np.zeros(2)

    @property
    def instruction(self) -> str:
        return f"reach the {self._colour} target"

    def start(self, seed: int) -> None:
        random = np.random.default_rng(seed)  # the seed alone decides
        self._colour = str(random.choice(list(COLOURS)))
        self._point, self._goal = random.uniform(-1, 1, (2, 2))

    def step(self, action: np.ndarray) -> Step:
        before = self._distance()
        self._point = np.clip(self._point + self._own.step_size * action, -1, 1)
        is_there = self._distance() < self._own.goal_radius
        return Step(before - self._distance() + float(is_there), is_there, truncated=False, success=is_there)

    def _distance(self) -> float:
        return float(np.linalg.norm(self._goal - self._point))

    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        return self._picture(self._size, self._size)[None], self._point.astype(np.float32)

    def _picture(self, height: int, width: int) -> np.ndarray:
        y, x = np.mgrid[1 : -1 : height * 1j, -1 : 1 : width * 1j]
        picture = np.full((height, width, 3), 230, np.uint8)
        picture[np.hypot(x - self._goal[0], y - self._goal[1]) < self._own.goal_radius] = COLOURS[self._colour]
        picture[np.hypot(x - self._point[0], y - self._point[1]) < 0.1] = 0
        return picture

    def render(self, height: int, width: int) -> np.ndarray:
        return self._picture(height, width)

    def close(self) -> None:
        pass
