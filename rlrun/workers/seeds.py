"""Seeds and sampling keys derived from (run seed, step, epoch, env, count): nothing random is stored."""

from __future__ import annotations

import numpy as np

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ALL = (1 << 64) - 1
_TRAINING_SEEDS = 1 << 32  # training episodes never meet the seeds of demonstrations and evaluations, which are small


def _mixed(*parts: np.ndarray | int) -> np.ndarray:
    """uint64, well mixed and independent of the order in which rows are asked for (splitmix64 finaliser)."""
    state: np.ndarray | int = 0
    with np.errstate(over="ignore"):
        for part in parts:
            if isinstance(part, int) and isinstance(state, int):  # numpy takes longer for one number than for a row
                state = _finalised(((state ^ (part & _ALL)) + _GAMMA) & _ALL)
            else:
                state = (np.asarray(state, np.uint64) ^ np.asarray(part).astype(np.uint64)) + np.uint64(_GAMMA)
                state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
                state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
                state = state ^ (state >> np.uint64(31))
    return np.asarray(state, np.uint64)


def _finalised(state: int) -> int:
    """The same for one number below 2**64."""
    state = ((state ^ (state >> 30)) * _FIRST) & _ALL
    state = ((state ^ (state >> 27)) * _SECOND) & _ALL
    return state ^ (state >> 31)


def episode_seeds(run_seed: int, step: int, epoch: int, groups: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """int64 [R]: reset seeds of training episodes; `groups` (int [R]) is the env index, or the index of its
    group where an algorithm compares episodes that start alike."""
    return (_TRAINING_SEEDS + (_mixed(run_seed, step, epoch, groups, episode) >> np.uint64(32))).astype(np.int64)


def sampling_keys(run_seed: int, step: int, epoch: int, envs: np.ndarray, at: np.ndarray | int) -> np.ndarray:
    """uint64 [R]: one key per env and moment `at` (int or int [R]; [T, 1] gives [T, R]), for drawing its tokens."""
    return _mixed(run_seed, step, epoch, envs, at, 1)
