"""Assignment of rows to workers: contiguous parts, computed equally by all workers."""

from __future__ import annotations


def ranks_of(env_worker: int, num_env_workers: int, num_actor_ranks: int) -> range:
    """Return the actor ranks that own rows of an env worker: both divide all rows into equal contiguous parts.

    Example: ranks_of(1, 2, 4) == range(2, 4); ranks_of(1, 4, 2) == range(0, 1)
    """
    first = env_worker * num_actor_ranks // num_env_workers
    return range(first, -(-(env_worker + 1) * num_actor_ranks // num_env_workers))


def rollout_of(env_worker: int, num_env_workers: int, num_rollout_workers: int) -> int:
    """Return the rank of the rollout worker that answers an env worker; neighbours share one.

    Example: rollout_of(2, 4, 2) == 1
    """
    return env_worker * num_rollout_workers // num_env_workers
