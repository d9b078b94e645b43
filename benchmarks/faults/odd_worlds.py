"""Healthy Gymnasium environments that look like broken ones, for `benchmarks/faults/odd.py`.

Each is `env.gymnasium.id=benchmarks.faults.odd_worlds:NAME`; import registers them.
"""

from __future__ import annotations

import os

import gymnasium
import numpy as np
from gymnasium import spaces

NUM_STEPS = 20
STEP_SIZE = 0.1
GOAL = 0.5  # radius
PICTURE = 32  # pixels a side


class Point(gymnasium.Env):
    """A point that moves by its two actions, with a reward for each step within the goal; subclasses are odd."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space: spaces.Space = spaces.Box(-10, 10, (2,), np.float32)
    action_space: spaces.Space = spaces.Box(-1, 1, (2,), np.float32)
    length = NUM_STEPS

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        self.place = self.start()
        return self.seen(), {}

    def start(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2)

    def step(self, action):
        self.num_steps += 1
        self.move(np.asarray(action, np.float64))
        return self.seen(), self.reward(), self.is_over(), self.num_steps >= self.length, {}

    def move(self, action: np.ndarray) -> None:
        self.place = self.place + STEP_SIZE * action

    def seen(self):
        return self.place.astype(np.float32)

    def reward(self) -> float:
        return float(np.linalg.norm(self.place) < GOAL)

    def is_over(self) -> bool:
        return False

    def render(self):
        return picture(self.place)


def picture(place: np.ndarray, brightness: int = 255) -> np.ndarray:
    """Return a dark picture with a bright square at `place`, which may lie outside of it."""
    drawn = np.zeros((PICTURE, PICTURE, 3), np.uint8)
    column, row = (PICTURE / 2 + place * PICTURE / 4).astype(int)
    drawn[max(0, row - 1) : max(0, row + 2), max(0, column - 1) : max(0, column + 2)] = brightness
    return drawn


class Pictures(Point):
    """The observation is the picture."""

    observation_space = spaces.Box(0, 255, (PICTURE, PICTURE, 3), np.uint8)

    def seen(self):
        return self.render()


class LeavesThePicture(Pictures):
    """The point leaves the picture now and then, which is black then."""

    def start(self):
        return self.np_random.uniform(-3, 3, 2)


class DimPictures(Pictures):
    """No pixel is brighter than 2 of 255."""

    def render(self):
        return picture(self.place, brightness=2)


class StillCamera(Pictures):
    """The camera looks past the robot: its pictures have a pattern and never change."""

    def render(self):
        return np.broadcast_to(np.arange(PICTURE, dtype=np.uint8)[:, None, None], (PICTURE, PICTURE, 3)).copy()


class WaitsForFire(Pictures):
    """Nothing changes before the first action is positive, as in Breakout before its ball is served."""

    def reset(self, *, seed=None, options=None):
        self.is_served = False
        return super().reset(seed=seed, options=options)

    def move(self, action):
        self.is_served = self.is_served or action[0] > 2 / 3
        if self.is_served:
            super().move(action)


class OneStart(Point):
    """All episodes begin at the same place."""

    def start(self):
        return np.array([0.6, 0.3])


class OwnStart(Point):
    """Each process has a fixed start of its own."""

    def start(self):
        return np.array([0.9, 0.1 * (os.getpid() % 7)])


class CannotMove(Point):
    """A robot that stands still."""

    def move(self, action):
        pass


class Minus(Point):
    """A reward of -1 for each step until the goal, as in many tasks of control."""

    def reward(self):
        return -1.0

    def is_over(self):
        return bool(np.linalg.norm(self.place) < GOAL)


class TinyRewards(Point):
    """Rewards of 1e-9."""

    def reward(self):
        return 1e-9 * super().reward()


class LargeRewards(Point):
    """Rewards of 1e5, and of -3."""

    def reward(self):
        return 1e5 if super().reward() else -3.0


class NoRewards(Point):
    """No rewards."""

    def reward(self):
        return 0.0


class OneStep(Point):
    """Every episode ends at its first step, with a reward or without."""

    def is_over(self):
        return True


class RareGoal(Point):
    """The goal is reached seldom, and the episode goes on within it."""

    def start(self):
        return self.np_random.uniform(-3, 3, 2)


class SlowResets(Point):
    """Some starts need a thousand tries, as those of simulators that sample until nothing collides."""

    def start(self):
        for _ in range(1000 * int(self.np_random.integers(0, 3))):
            self.np_random.uniform(-1, 1, 2)
        return super().start()


WORLDS = (
    LeavesThePicture,
    DimPictures,
    StillCamera,
    WaitsForFire,
    OneStart,
    OwnStart,
    CannotMove,
    Minus,
    TinyRewards,
    LargeRewards,
    NoRewards,
    OneStep,
    RareGoal,
    SlowResets,
)
for _world in WORLDS:
    gymnasium.register(f"{_world.__name__}-v0", entry_point=_world)
