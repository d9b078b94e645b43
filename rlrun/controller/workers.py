"""The interface to the workers of a run, which one process and a Ray cluster both implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rlrun.controller.future import Call, Future
from rlrun.data.messages import Span, WorkerStatus
from rlrun.placement.plan import Plan
from rlrun.system.errors import RunError

T = TypeVar("T")


class Workers(ABC):
    """The workers of a run, numbered per role. `WorkerGroup` makes typed requests of it."""

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

        calls, num_returns: by the rank of the env worker; the second is how many values its generator returns. The
        result has a future for each of them, by rank. Conversations that are still going on end with an error.
        """

    @abstractmethod
    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        """The values, in order. The first failure of any worker of the run is raised at once.

        subject: what is waited for, in words. Raises RunError naming the late workers after `deadline_s`.
        """

    @abstractmethod
    def outcomes(
        self, futures: Sequence[Future[T]], subject: str, deadline_s: float, on_failure: Callable[[RunError], None]
    ) -> list[T | RunError]:
        """As `wait`, but failures are given to `on_failure`, which raises what is final, and stand for the values."""

    @abstractmethod
    def replace(self, role: str, rank: int) -> list[tuple[str, int]]:
        """End a worker and start it anew on its slot, with nothing loaded; waits of other workers on it end.

        Where its node is lost, `plan` changes, and every other worker whose place changes starts anew as well; actor
        workers only if `role` is theirs. Returns all that were started.
        """

    @property
    def can_replace(self) -> bool:
        """Whether `replace` has a cluster to start a worker in."""
        return True

    @abstractmethod
    def address(self, role: str, rank: int) -> str:
        """IP address under which the other nodes reach the worker's node."""

    @abstractmethod
    def share_memory(self, role: str, rank: int, other: str) -> bool:
        """Whether a worker and all those of another role run on one node: they can map each other's memory."""

    @abstractmethod
    def statuses(self) -> list[WorkerStatus]:
        """What every worker does now; a worker that does not answer within a second is left out."""

    @abstractmethod
    def spans(self) -> dict[str, list[Span]]:
        """Closed spans of every worker since the last call."""

    @abstractmethod
    def close(self) -> None:
        """End every worker and free what they hold. Safe to call twice."""

    def rollout_of(self, env_rank: int) -> int:
        """The rollout worker that answers an env worker: neighbours share one."""
        return env_rank * self.sizes["rollout"] // self.sizes["env"]
