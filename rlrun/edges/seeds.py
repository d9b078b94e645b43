"""Seeds of episodes, sampling keys, and the assignment of rows to workers.

Reset seeds and sampling keys are functions of (run seed, step, epoch, env, count), without a stored state, by
SplitMix64 (Steele, Lea and Flood, 2014). Rows are assigned in contiguous parts, computed equally by all workers.
"""

from __future__ import annotations

import numpy as np

from rlrun.edges.starts import TRAINING_SEEDS, Split, split_of

SPLITMIX_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # increment of the state from one number to the next
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)
_QUARTER = 1 << 29  # of the numbers that fit into 31 bits
_QUARTER_OF = {Split.validation: 1, Split.test: 2, Split.train: 3}


def splitmix64(state: np.ndarray) -> np.ndarray:
    """Return the output of SplitMix64 for each state: uint64, of the same shape."""
    for shift, factor in _ROUNDS:
        state = (state ^ (state >> shift)) * factor  # wraps around
    return state ^ (state >> _LAST_SHIFT)


def hash_numbers(*parts: np.ndarray | int) -> np.ndarray:
    """Return a uint64 hash of the parts, elementwise, so that it is independent of the order of rows."""
    state = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):  # single numbers would warn that they wrap around
        for part in parts:
            state = splitmix64((state ^ np.asarray(part).astype(np.uint64)) + SPLITMIX_GAMMA)
    return np.asarray(state)


def episode_seeds(run_seed: int, step: int, epoch: int, groups: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Return int64 [R]: reset seeds of training episodes.

    groups: int [R], the env index, or the index of its group if an algorithm compares episodes with equal starts.
    """
    return (TRAINING_SEEDS.start + (hash_numbers(run_seed, step, epoch, groups, episode) >> np.uint64(32))).astype(
        np.int64
    )


def simulator_seed(number: int) -> int:
    """Return the number that code outside of rlrun gets as the seed of a start, below 2^31.

    NumPy's RandomState and engines in C take no more than 31 or 32 bits. Numbers below 2^29 stay as they are; each
    other one is hashed into the quarter of its split, so that the splits stay disjoint.
    """
    if 0 <= number < _QUARTER:
        return number
    return _QUARTER_OF[split_of(number)] * _QUARTER + int(hash_numbers(number)) % _QUARTER


def sampling_keys(run_seed: int, step: int, epoch: int, envs: np.ndarray, at: np.ndarray | int) -> np.ndarray:
    """Return uint64 [R]: one sampling key per env and time `at` (int or int [R]; [T, 1] gives [T, R])."""
    return hash_numbers(run_seed, step, epoch, envs, at, 1)


def epoch_keys(run_seed: int, step: int, epoch: int, envs: np.ndarray, horizon: int, repetition: int) -> np.ndarray:
    """Return uint64 [horizon + 1, R]: the sampling keys of a rollout epoch, and of the request after its end.

    repetition: how often the epoch was collected before (`algorithm.filter_groups`).
    """
    moments = epoch * horizon + np.arange(horizon + 1)
    return sampling_keys(run_seed, step, epoch, envs, moments[:, None] + repetition * len(moments))


def sampled_rows(first_env: int, num_chunk_steps: int, num_rows: int) -> np.ndarray:
    """Return int [T]: the row whose actions travel with each chunk step of a trajectory of rows from `first_env` on."""
    numbers = hash_numbers(first_env, np.arange(num_chunk_steps), 2)
    return (numbers % np.uint64(num_rows)).astype(int)


def actor_ranks_of(env_worker: int, num_env_workers: int, num_actor_ranks: int) -> range:
    """Return the actor ranks that own rows of an env worker: both divide all rows into equal contiguous parts.

    Example: ranks_of(1, 2, 4) == range(2, 4); ranks_of(1, 4, 2) == range(0, 1)
    """
    first = env_worker * num_actor_ranks // num_env_workers
    return range(first, -(-(env_worker + 1) * num_actor_ranks // num_env_workers))


def rollout_of(env_worker: int, num_env_workers: int, num_rollout_workers: int) -> int:
    """Return the rank of the rollout worker that answers an env worker; consecutive ranks share one.

    Example: rollout_of(2, 4, 2) == 1
    """
    return env_worker * num_rollout_workers // num_env_workers
