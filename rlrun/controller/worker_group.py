"""How workers are reached: the interface that one process and a Ray cluster both implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.data.messages import Span, WorkerStatus
from rlrun.placement.plan import Plan
from rlrun.system.errors import RunError

# Where each role's class lives. Text, because a worker's module is imported in its own process, after
# the environment variables that its libraries read have been set.
WORKER_CLASSES = {
    "env": "rlrun.workers.env_worker:EnvWorker",
    "rollout": "rlrun.workers.rollout_worker:RolloutWorker",
    "actor": "rlrun.workers.actor_worker:ActorWorker",
}


@dataclass(frozen=True, eq=False)
class Pending:
    """The answer to come of one request. `value` is a Ray reference, or the answer itself in one process."""

    worker: str  # "role/rank"
    method: str
    value: Any
    makers: tuple[str, ...] = ()  # workers whose answers it takes


class Processes(ABC):
    """The workers of a run, numbered per role. A request names a method of the plain worker class."""

    plan: Plan  # who sits where
    sizes: dict[str, int]  # role -> number of workers that were started
    is_concurrent: bool = True  # whether what was asked goes on while the driver does something else

    @abstractmethod
    def launch(self, role: str) -> None:
        """Start the workers of a role that was left for later; nothing else may be asked of them before."""

    @abstractmethod
    def submit(self, role: str, rank: int, method: str, *arguments: Any) -> Pending:
        """Ask one worker; requests to a worker run in the order of asking.

        A `Pending` among the arguments stands for its value, which goes from worker to worker
        without passing through the driver.
        """

    @abstractmethod
    def converse(
        self, method: str, arguments: Mapping[int, tuple], num_returns: Mapping[int, int], is_held: bool = False
    ) -> dict[int, tuple[Pending, ...]]:
        """Run a generator method on env workers, the observations of each answered by its rollout worker.

        arguments, num_returns: by the rank of the env worker; how many values its generator returns. They come back by
        rank, too. An older conversation that is still going on ends with an error. is_held: what env workers ask is
        answered after `open` only; never in one process, where a conversation is over when this returns.
        """

    @abstractmethod
    def open(self) -> None:
        """Let rollout workers answer the conversation that was begun and held."""

    @abstractmethod
    def wait(self, pendings: Sequence[Pending], subject: str, deadline_s: float) -> list[Any]:
        """The values, in order. The first failure is raised at once, whoever it is that fails.

        subject: what is waited for, in words. Raises RunError naming the late workers after `deadline_s`.
        """

    @abstractmethod
    def outcomes(
        self, pendings: Sequence[Pending], subject: str, deadline_s: float, on_failure: Callable[[RunError], None]
    ) -> list[Any]:
        """As `wait`, but a failure is given to `on_failure`, which raises what is final, and stands for its value."""

    @abstractmethod
    def replace(self, role: str, rank: int) -> list[tuple[str, int]]:
        """End a worker and start it anew on its slot, with nothing loaded; frees whoever waits on it.

        Where its node is lost, `plan` changes, and everyone else whose place changes starts anew as well; actor
        workers only if `role` is theirs. Returns all that were started.
        """

    @property
    def can_replace(self) -> bool:
        """Whether `replace` has a cluster to start a worker in."""
        return True

    @abstractmethod
    def address(self, role: str, rank: int) -> str:
        """IP address under which the worker's host is reached by the others."""

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

    def ask_all(self, role: str, method: str, *arguments: Any, subject: str, deadline_s: float) -> list[Any]:
        """Ask every worker of a role the same, and wait for all."""
        pendings = [self.submit(role, rank, method, *arguments) for rank in range(self.sizes[role])]
        return self.wait(pendings, subject, deadline_s)

    def rollout_of(self, env_rank: int) -> int:
        """The rollout worker that answers an env worker: neighbours share one."""
        return env_rank * self.sizes["rollout"] // self.sizes["env"]
