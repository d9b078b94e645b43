"""Seeds of episodes and sampling keys, the assignment of rows to workers, and results by task instance.

Reset seeds and sampling keys are functions of (run seed, step, epoch, env, count), without a stored state, by
SplitMix64 (Steele, Lea and Flood, 2014). Rows are assigned in contiguous parts, computed equally by all workers.
Task instances are those of BEHAVIOR, whose challenge reports results by instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.edges.reports import EpisodeReport
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


def _hash(*parts: np.ndarray | int) -> np.ndarray:
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
    return (TRAINING_SEEDS.start + (_hash(run_seed, step, epoch, groups, episode) >> np.uint64(32))).astype(np.int64)


def simulator_seed(number: int) -> int:
    """Return the number that code outside of rlrun gets as the seed of a start, below 2^31.

    NumPy's RandomState and engines in C take no more than 31 or 32 bits. Numbers below 2^29 stay as they are; each
    other one is hashed into the quarter of its split, so that the splits stay disjoint.
    """
    if 0 <= number < _QUARTER:
        return number
    return _QUARTER_OF[split_of(number)] * _QUARTER + int(_hash(number)) % _QUARTER


def sampling_keys(run_seed: int, step: int, epoch: int, envs: np.ndarray, at: np.ndarray | int) -> np.ndarray:
    """Return uint64 [R]: one sampling key per env and time `at` (int or int [R]; [T, 1] gives [T, R])."""
    return _hash(run_seed, step, epoch, envs, at, 1)


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


@dataclass(frozen=True)
class InstanceResult:
    """Results of all episodes of one task instance; infrastructure faults are not counted.

    Example: InstanceResult(303, episodes=1, successes=0, q_score=0.667, simulator_steps=2000.0, simulator_time_s=66.7)
    """

    instance: int
    episodes: int
    successes: int
    q_score: float  # mean, 0..1
    simulator_steps: float  # mean control steps of an episode
    simulator_time_s: float  # the same, in the simulator's seconds


def listed_instance(seed: int, ids: Sequence[int]) -> int:
    """Return the task instance of an episode with reset seed `seed`. Example: (4, [301, 302]) -> 301."""
    return ids[seed % len(ids)]


def results_by_instance(reports: Iterable[EpisodeReport], ids: Sequence[int], action_hz: int) -> list[InstanceResult]:
    """Return one result per instance with episodes, in the order of `ids`."""
    groups: dict[int, list[EpisodeReport]] = {instance: [] for instance in ids}
    for report in reports:
        if not report.infra_fault:
            groups[listed_instance(report.seed, ids)].append(report)
    results = []
    for instance, group in groups.items():
        if group:
            steps = sum(report.num_control_steps for report in group) / len(group)
            q_score = sum(report.q_score for report in group) / len(group)
            successes = sum(report.success for report in group)
            results.append(InstanceResult(instance, len(group), successes, q_score, steps, steps / action_hz))
    return results
