"""Which role has the accelerators that actor and rollout workers share."""

from __future__ import annotations

from rlrun.config.schema import RunConfig
from rlrun.controller.actor_group import ActorGroup
from rlrun.controller.rollout_group import RolloutGroup

_OTHER = {"actor": "rollout", "rollout": "actor"}


class Colocation:
    """With `placement.offload` one role is offloaded to host memory before the other is onloaded.

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
        """Offload the other role, then onload `role`. Does nothing where `role` is on the accelerators."""
        if not self._is_on or self._holder == role:
            return
        self._holder = None  # until both moves are over
        groups: dict[str, ActorGroup | RolloutGroup] = {"actor": self._actors, "rollout": self._rollouts}
        other = _OTHER[role]
        # The actors' wait serves both: a rollout worker that is lost meanwhile must not disturb it.
        self._actors.wait(groups[other].offload(), f"{other} workers offload", self._deadline_s)
        self._actors.wait(groups[role].onload(), f"{role} workers onload", self._deadline_s)
        self._holder = role

    def forget(self) -> None:
        """A worker was replaced: the next `onload` moves both roles."""
        self._holder = None
