"""Colocation: actor and rollout workers use the same accelerators in turn."""

from __future__ import annotations

from rlrun.config.schema import RunConfig
from rlrun.controller.worker_group import ActorGroup, RolloutGroup

_OTHER = {"actor": "rollout", "rollout": "actor"}


class Colocation:
    """Offloads one role to host memory before it onloads the other, with `placement.offload`.

    | work | needs on the accelerators |
    |---|---|
    | load, update, imitate, save, restore, export of the actor | actor |
    | load of rollout workers, collect, evaluate | rollout |
    | weight sync | neither: weights are read and written where they are |

    Example: colocation.onload("rollout") before the first observation of a step.
    """

    def __init__(self, config: RunConfig, actors: ActorGroup, rollouts: RolloutGroup):
        self._is_on = config.placement.offload and len(actors) > 0 and len(rollouts) > 0
        self._deadline_s = config.cluster.step_deadline_s
        self._actors, self._rollouts = actors, rollouts
        self._holder: str | None = None  # the role on the accelerators; None: unknown

    def onload(self, role: str) -> None:
        """Offload the other role, then onload `role`. Does nothing if `role` is on the accelerators already."""
        if not self._is_on or self._holder == role:
            return
        self._holder = None  # unknown until both moves have succeeded
        groups: dict[str, ActorGroup | RolloutGroup] = {"actor": self._actors, "rollout": self._rollouts}
        other = _OTHER[role]
        # Both roles use the actors' wait, which does not fail if a rollout worker is lost meanwhile.
        self._actors.wait(groups[other].offload(), f"{other} workers offload", self._deadline_s)
        self._actors.wait(groups[role].onload(), f"{role} workers onload", self._deadline_s)
        self._holder = role

    def forget(self) -> None:
        """Let the next `onload` move both roles; called after a worker was replaced."""
        self._holder = None
