"""Colocation of roles on one accelerator, which take turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlrun.config.schema import RunConfig
from rlrun.controller.workers import (
    ActorGroup,
    WorkerGroup,
)

if TYPE_CHECKING:
    from rlrun.workers.rollout_worker import RolloutWorker

_OTHER = {"actor": "rollout", "rollout": "actor"}


class Colocation:
    """Offloads one role before it onloads the other, with `placement.offload`.

    | work | needs on the accelerators |
    |---|---|
    | load, update, imitate, save, restore, export, weight sync of the actor | actor |
    | load of rollout workers, collect, evaluate | rollout |

    Rollout workers take weights while they are offloaded, into host memory, and write them to the accelerators when
    they are onloaded. So the actor gathers and merges where it is fast, and the weights pass the host once.

    Example: colocation.onload("rollout") before the first observation of a step.
    """

    def __init__(self, config: RunConfig, actors: ActorGroup, rollouts: WorkerGroup[RolloutWorker]):
        self._is_on = config.placement.offload and len(actors) > 0 and len(rollouts) > 0
        self._deadline_s = config.cluster.step_deadline_s
        self._actors = actors
        self._rollouts = rollouts
        self._holder: str | None = None  # the role on the accelerators; None: unknown

    def onload(self, role: str, group: WorkerGroup[Any] | None = None) -> None:
        """Offload the other role, then onload `role`. Does nothing if `role` is on the accelerators already.

        group: whose `wait` is used; None: the actors', which does not fail if a rollout worker is lost meanwhile.
        """
        if not self._is_on or self._holder == role:
            return
        self._holder = None  # unknown until both moves have succeeded
        groups: dict[str, WorkerGroup[Any]] = {"actor": self._actors, "rollout": self._rollouts}
        other = _OTHER[role]
        wait = (group or self._actors).wait
        offloading = groups[other].submit_all(lambda worker: worker.offload())
        wait(offloading, f"{other} workers offload", self._deadline_s)
        onloading = groups[role].submit_all(lambda worker: worker.onload())
        wait(onloading, f"{role} workers onload", self._deadline_s)
        self._holder = role

    def forget(self) -> None:
        """Let the next `onload` move both roles; called after a worker was replaced."""
        self._holder = None
