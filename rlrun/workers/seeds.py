"""Seeds and sampling keys derived from (run seed, step, epoch, env, count): nothing random is stored."""

from __future__ import annotations

import numpy as np

_TRAINING_SEEDS = 1 << 32  # training episodes never meet the seeds of demonstrations and evaluations, which are small


def _mixed(*parts: np.ndarray | int) -> np.ndarray:
    """uint64, well mixed and independent of the order in which rows are asked for (splitmix64 finaliser)."""
    state = np.zeros(np.broadcast_shapes(*(np.shape(part) for part in parts)), np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            state = (state ^ np.asarray(part).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


def episode_seeds(run_seed: int, step: int, epoch: int, groups: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """int64 [R]: reset seeds of training episodes; `groups` is the env index, or the group index in GRPO."""
    return (_TRAINING_SEEDS + (_mixed(run_seed, step, epoch, groups, episode) >> np.uint64(32))).astype(np.int64)


def sampling_keys(run_seed: int, step: int, epoch: int, envs: np.ndarray, at: np.ndarray | int) -> np.ndarray:
    """uint64 [R]: one key per env and moment `at` (int or int [R]), for drawing its action tokens."""
    return _mixed(run_seed, step, epoch, envs, at, 1)
