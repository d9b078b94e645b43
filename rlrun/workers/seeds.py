"""Seeds and sampling keys, derived from (run seed, step, epoch, env, count), so that no random state is stored."""

from __future__ import annotations

import numpy as np

from rlrun.data import splitmix64

_TRAINING_SEEDS = 1 << 32  # above the seeds of demonstrations and evaluations


def _mixed(*parts: np.ndarray | int) -> np.ndarray:
    """Return well mixed uint64, independent of the order in which rows are computed."""
    state = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):  # single numbers would warn that they wrap around
        for part in parts:
            state = splitmix64.mixed((state ^ np.asarray(part).astype(np.uint64)) + splitmix64.GAMMA)
    return np.asarray(state)


def episode_seeds(run_seed: int, step: int, epoch: int, groups: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Return int64 [R]: reset seeds of training episodes.

    groups: int [R], the env index, or the index of its group if an algorithm compares episodes with equal starts.
    """
    return (_TRAINING_SEEDS + (_mixed(run_seed, step, epoch, groups, episode) >> np.uint64(32))).astype(np.int64)


def sampling_keys(run_seed: int, step: int, epoch: int, envs: np.ndarray, at: np.ndarray | int) -> np.ndarray:
    """Return uint64 [R]: one sampling key per env and time `at` (int or int [R]; [T, 1] gives [T, R])."""
    return _mixed(run_seed, step, epoch, envs, at, 1)
