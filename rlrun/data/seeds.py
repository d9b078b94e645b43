"""Random numbers from keys, without a stored state: SplitMix64 (Steele, Lea and Flood, 2014), for whole arrays.

Reset seeds and sampling keys are derived from (run seed, step, epoch, env, count).
"""

from __future__ import annotations

import numpy as np

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # what the state grows by from one number to the next
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)
_TRAINING_SEEDS = 1 << 32  # above the seeds of demonstrations and evaluations


def mixed(state: np.ndarray) -> np.ndarray:
    """Return the number of each state: uint64, of the same shape."""
    for shift, factor in _ROUNDS:
        state = (state ^ (state >> shift)) * factor  # wraps around
    return state ^ (state >> _LAST_SHIFT)


def _combined(*parts: np.ndarray | int) -> np.ndarray:
    """Return well mixed uint64, independent of the order in which rows are computed."""
    state = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):  # single numbers would warn that they wrap around
        for part in parts:
            state = mixed((state ^ np.asarray(part).astype(np.uint64)) + GAMMA)
    return np.asarray(state)


def episode_seeds(run_seed: int, step: int, epoch: int, groups: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Return int64 [R]: reset seeds of training episodes.

    groups: int [R], the env index, or the index of its group if an algorithm compares episodes with equal starts.
    """
    return (_TRAINING_SEEDS + (_combined(run_seed, step, epoch, groups, episode) >> np.uint64(32))).astype(np.int64)


def sampling_keys(run_seed: int, step: int, epoch: int, envs: np.ndarray, at: np.ndarray | int) -> np.ndarray:
    """Return uint64 [R]: one sampling key per env and time `at` (int or int [R]; [T, 1] gives [T, R])."""
    return _combined(run_seed, step, epoch, envs, at, 1)
