"""Whose rows an actor rank learns from: contiguous, and cut alike by everyone who asks."""

from __future__ import annotations


def ranks_of(env_worker: int, num_env_workers: int, num_actor_ranks: int) -> range:
    """The actor ranks that own rows of an env worker: all rows are cut evenly, by env workers and by ranks.

    Example: ranks_of(1, 2, 4) == range(2, 4); ranks_of(1, 4, 2) == range(0, 1)
    """
    first = env_worker * num_actor_ranks // num_env_workers
    return range(first, -(-(env_worker + 1) * num_actor_ranks // num_env_workers))
