"""Which role has the accelerators that actor and rollout workers share: they take turns."""

from __future__ import annotations

from collections.abc import Callable

from rlrun.config.schema import RunConfig
from rlrun.controller.worker_group import Pending, Processes

_OTHER = {"actor": "rollout", "rollout": "actor"}


class Turns:
    """With `placement.offload` the other role is off the accelerators before a role comes back to them.

    | work | turn of |
    |---|---|
    | load, update, imitate, save, restore, export of the actor | actor |
    | load of rollout workers, collect, evaluate | rollout |
    | weight sync | nobody: weights are read and written where they are |

    Example: turns.give("rollout") before the first observation of a step.
    """

    def __init__(self, config: RunConfig, processes: Processes, wait: Callable[[list[Pending], str], list]):
        """wait: for the answers of both roles; a rollout worker that is lost meanwhile must not disturb it."""
        self._is_on = config.placement.offload and {"actor", "rollout"} <= set(processes.sizes)
        self._processes, self._wait = processes, wait
        self._holder: str | None = None

    def give(self, role: str) -> None:
        """Let `role` have the accelerators; nothing happens where it has them."""
        if not self._is_on or self._holder == role:
            return
        self._holder = None  # as long as a move is not over, nobody is known to have them
        for method, mover in (("park", _OTHER[role]), ("bring", role)):
            ranks = range(self._processes.sizes[mover])
            self._wait([self._processes.submit(mover, rank, method) for rank in ranks], f"{mover} workers {method}")
        self._holder = role

    def forget(self) -> None:
        """A worker was replaced: the next one who asks makes sure."""
        self._holder = None
