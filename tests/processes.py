"""Child processes for tests, forked from one that has imported the workers: to import them takes 5 s of a core."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOADED = ["rlrun.workers.actor_worker", "rlrun.workers.rollout_worker", "rlrun.policies.opening"]


def context() -> ForkServerContext:
    """Return what makes processes and pipes; its processes share no state with this one, as after spawning."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    return found
