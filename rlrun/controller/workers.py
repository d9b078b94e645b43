"""The interface to the workers of a run, which one process and a Ray cluster both implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rlrun.controller.future import Call, Future
from rlrun.data.messages import Span, WorkerStatus
from rlrun.data.seeds import rollout_of
from rlrun.placement.plan import Plan
from rlrun.system.errors import RunError

T = TypeVar("T")


class Workers(ABC):
    """The workers of a run, numbered per role. `WorkerGroup` adds types to the requests."""

    plan: Plan  # the node and accelerators of each worker
    sizes: dict[str, int]  # role -> number of workers that were started

    @abstractmethod
    def submit(self, role: str, rank: int, call: Call) -> Future[Any]:
        """Request a call of one worker; the requests to a worker run in the order of their submission.

        A `Future` among the arguments stands for its value.
        """

    @abstractmethod
    def converse(self, calls: Mapping[int, Call], num_returns: Mapping[int, int]) -> dict[int, tuple[Future[Any], ...]]:
        """Run a generator method on env workers; the rollout worker of each answers its observations.

        calls: by rank of the env worker. num_returns: how many values its generator returns, by rank. Returns a future
        for each value, by rank. Conversations that are still running end with an error.
        """

    @abstractmethod
    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        """Return the values, in order. Raises the first failure of any worker of the run at once.

        subject: what the values are, in words. Raises RunError naming the late workers after `deadline_s`.
        """

    @abstractmethod
    def outcomes(
        self, futures: Sequence[Future[T]], subject: str, deadline_s: float, on_failure: Callable[[RunError], None]
    ) -> list[T | RunError]:
        """Wait like `wait`, but pass failures to `on_failure`, which may raise, and return them in place of values."""

    @abstractmethod
    def replace(self, role: str, rank: int) -> list[tuple[str, int]]:
        """End a worker and start it anew on its slot, with nothing loaded. Other workers stop waiting for the old one.

        If its node is lost, `plan` changes, and every other worker whose place changes is restarted too; actor workers
        only if `role` is theirs. Returns (role, rank) of all workers that were started.
        """

    @property
    def can_replace(self) -> bool:
        """Return whether there is still a cluster in which `replace` can start a worker."""
        return True

    @abstractmethod
    def address(self, role: str, rank: int) -> str:
        """Return the IP address at which other nodes reach the worker's node."""

    @abstractmethod
    def share_memory(self, role: str, rank: int, other: str) -> bool:
        """Return whether a worker and all workers of another role run on one node, and so can share memory."""

    @abstractmethod
    def statuses(self) -> list[WorkerStatus]:
        """Return the status of every worker, except those that do not answer within a second."""

    @abstractmethod
    def spans(self) -> dict[str, list[Span]]:
        """Return the spans of every worker closed since the last call."""

    @abstractmethod
    def close(self) -> None:
        """End every worker and free its resources. Safe to call twice."""

    def rollout_of(self, env_rank: int) -> int:
        """Return the rank of the rollout worker that answers an env worker."""
        return rollout_of(env_rank, self.sizes["env"], self.sizes["rollout"])
