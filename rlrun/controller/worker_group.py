"""All workers of one role, with requests that are typed by the worker's own class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rlrun.controller.future import Future, recorded
from rlrun.controller.workers import Workers

T = TypeVar("T")
W = TypeVar("W")


class WorkerGroup(Generic[W]):
    """The workers of a role; a role that was not started has none.

    Example::

        ports = group.wait([group.submit(0, lambda actor: actor.free_port(address))], "a port", 10.0)
    """

    role: str

    def __init__(self, workers: Workers):
        self._workers = workers

    def __len__(self) -> int:
        return self._workers.sizes.get(self.role, 0)

    def submit(self, rank: int, request: Callable[[W], T]) -> Future[T]:
        """Request a call of one worker."""
        return self._workers.submit(self.role, rank, recorded(request))

    def submit_all(self, request: Callable[[W], T]) -> list[Future[T]]:
        """Request the same call of every worker; futures by rank."""
        return [self.submit(rank, request) for rank in range(len(self))]

    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        """The values, in order. Raises RunError, see `Workers.wait`."""
        return self._workers.wait(futures, subject, deadline_s)
