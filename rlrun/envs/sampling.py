"""Sampling of a simulator: what it shows at a few starts, and how it answers the actions of a data set."""

from __future__ import annotations

import numpy as np

from rlrun.edges.spaces import Spaces
from rlrun.edges.world_sample import WorldSample
from rlrun.envs.vector_env import VectorEnv

NUM_RANDOM = 4  # control steps with random actions after the given ones
_WIDTH = 1.0  # of random actions around the given ones, where the world has no limits


def sample_world(env: VectorEnv, seeds: np.ndarray, actions: np.ndarray) -> WorldSample:
    """Start an episode with each of the seeds, int [R], and make K control steps with actions, float32 [R, K, A].

    Rows that ran an episode before have lost it.
    """
    parts = []
    states = []
    for first in range(0, len(seeds), env.num_envs):
        taken = slice(first, first + env.num_envs)
        episodes = _Episodes(env, seeds[taken])
        parts.append(episodes.run(actions[taken]))
        states += [parts[-1].proprio, episodes.run(_random(env.spaces, actions[taken], first)).proprio]
    every = np.concatenate([part.reshape(-1, part.shape[2]) for part in states])
    known = every[np.isfinite(every).all(1)]
    joined = {
        name: np.concatenate([vars(part)[name] for part in parts])
        for name in ("images", "last_images", "proprio", "rewards")
    }
    return WorldSample(**joined, varies=np.ptp(known, axis=0) > 0)


def _random(spaces: Spaces, actions: np.ndarray, seed: int) -> np.ndarray:
    """Return random actions, float32 [R, NUM_RANDOM, A]; without limits they lie around the last given ones."""
    random = np.random.default_rng(seed)
    shape = (len(actions), NUM_RANDOM, spaces.num_actions)
    if spaces.num_choices is not None:
        return random.integers(0, spaces.num_choices, shape).astype(np.float32)
    low, high = spaces.limits
    last = actions[:, -1:]
    low, high = (np.where(np.isfinite(limit), limit, last + side) for limit, side in ((low, -_WIDTH), (high, _WIDTH)))
    return random.uniform(low, high, shape).astype(np.float32)


class _Episodes:
    """Episodes in the first rows of a simulator."""

    def __init__(self, env: VectorEnv, seeds: np.ndarray):
        """Start an episode with each seed."""
        self._env = env
        self._frames = env.reset(np.arange(len(seeds)), seeds)
        self._running = np.arange(env.num_envs) < len(seeds)

    def run(self, actions: np.ndarray) -> WorldSample:
        """Make K control steps with actions, [R, K, A], as long as the episodes last."""
        num_rows, num_steps = actions.shape[:2]
        last = np.array(self._frames.images[:num_rows])
        first = last.copy()
        proprio = np.full((num_rows, num_steps + 1, self._frames.proprio.shape[1]), np.nan, np.float32)
        rewards = np.full((num_rows, num_steps), np.nan, np.float32)
        proprio[self._running[:num_rows], 0] = self._frames.proprio[:num_rows][self._running[:num_rows]]
        every = np.zeros((self._env.num_envs, 1, actions.shape[2]), np.float32)
        for step in range(num_steps):
            if not self._running.any():
                break
            every[:num_rows, 0] = actions[:, step]
            result = self._env.step_chunk(every, self._running)
            ran = np.flatnonzero(self._running & ~result.infra_fault)
            proprio[ran, step + 1] = result.frames.proprio[ran]
            rewards[ran, step] = result.rewards[ran, 0]
            last[ran] = result.frames.images[ran]
            self._frames = result.frames
            self._running = self._running & ~result.ended
        return WorldSample(first, last, proprio, rewards, np.zeros(proprio.shape[2], bool))
