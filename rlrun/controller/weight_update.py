"""How the actor's weights get to the rollout workers."""

from __future__ import annotations

from collections import deque

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.controller.worker_group import Pending, Processes

_UNDER_WAY = 2  # buckets: while one is taken, the next is packed


class WeightDelivery:
    """All buckets of a version to every rollout worker: carried one after another, or in one broadcast.

    Example: delivery.begin(4) behind an update, then delivery.complete(4).
    """

    def __init__(self, config: RunConfig, processes: Processes):
        self._is_collective = config.weight_sync.transport is WeightTransport.collective
        self._deadline_s = config.cluster.step_deadline_s
        self._processes = processes
        self._begun: tuple[int, list[list[Pending]]] | None = None  # a version, and its first buckets by actor rank
        self.num_buckets = 0  # per version and rollout worker; known once the actor is loaded

    def begin(self, version: int) -> None:
        """Let the actor pack the first buckets as soon as it has done what it was asked before; nobody has to tell it.

        Rollout workers are asked by `complete`: with a request whose argument is not made yet, Ray would hold back
        those that come after it, such as for their status. A broadcast would block them.
        """
        if not self._is_collective:
            firsts = range(min(_UNDER_WAY, self.num_buckets))
            self._begun = version, [self._packed(version, index) for index in firsts]

    def forget(self) -> None:
        """Whoever was to bring or take what was begun is another process now."""
        self._begun = None

    def complete(self, version: int) -> None:
        """Until every rollout worker has all buckets, also those that were not begun. Raises RunError."""
        if self._is_collective:
            self._wait(self._asked("actor", "broadcast", version) + self._asked("rollout", "receive"), version)
            return
        begun, self._begun = self._begun, None
        packed = dict(enumerate(begun[1])) if begun is not None and begun[0] == version else {}
        under_way: deque[list[Pending]] = deque()
        for index in range(self.num_buckets):
            if len(under_way) == _UNDER_WAY:
                self._wait(under_way.popleft(), version)
            bucket, *others = packed.pop(index, None) or self._packed(version, index)
            under_way.append(others + self._asked("rollout", "apply", bucket))
        self._wait([pending for bucket in under_way for pending in bucket], version)

    def _packed(self, version: int, index: int) -> list[Pending]:
        """By actor rank; the first has the bucket. On one node only the news of it passes through the object store."""
        return self._asked("actor", "pack", version, index, self._processes.share_memory("actor", 0, "rollout"))

    def _asked(self, role: str, method: str, *arguments: object) -> list[Pending]:
        return [self._processes.submit(role, rank, method, *arguments) for rank in range(self._processes.sizes[role])]

    def _wait(self, pendings: list[Pending], version: int) -> None:
        self._processes.wait(pendings, f"weights of version {version}", self._deadline_s)
