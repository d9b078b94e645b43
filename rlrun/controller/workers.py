"""The interface to the workers of a run, which one process and a Ray cluster both implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from rlrun.config.schema import RunConfig
from rlrun.edges.actions import ActionChunk
from rlrun.edges.observations import Observation
from rlrun.edges.seeds import rollout_of
from rlrun.edges.wrong_message import WRONG_MESSAGE
from rlrun.placement.plan import Plan
from rlrun.system.errors import RunError
from rlrun.system.status import Span, WorkerStatus

if TYPE_CHECKING:
    from rlrun.workers.actor_worker import ActorWorker  # noqa: F401  # named as text in the base class
    from rlrun.workers.env_worker import EnvWorker  # named as text in the type of a request


T = TypeVar("T")
W = TypeVar("W")
EpisodesRequest = Callable[["EnvWorker"], Generator[Observation, ActionChunk, tuple[Any, ...]]]


@dataclass(frozen=True, eq=False)
class Future(Generic[T]):
    """The result to come of one request. `reference` is a Ray reference, or in one process a function that returns it.

    Example: Future("actor/0", "update", ObjectRef(…), producers=("env/0", "env/1"))
    """

    worker: str  # "role/rank"
    method: str
    reference: Any
    producers: tuple[str, ...] = ()  # workers whose results are among the arguments


def value_of(future: Future[T]) -> T:
    """Return a future typed as its value, for the arguments of a request. The value does not pass through the driver.

    Example: actors.submit(0, lambda actor: actor.update(step, None, value_of(shard)))
    """
    return cast(T, future)  # the launcher replaces the future by its value


class Call(NamedTuple):
    """One method call of a worker, with futures among its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()


class _CallRecorder:
    """Takes the place of a worker in a request, and returns the call instead of making it."""

    def __getattr__(self, method: str) -> Callable[..., Call]:
        return lambda *arguments: Call(method, arguments)


def recorded(request: Callable[[W], object]) -> Call:
    """Return the call that a request makes. Type checkers see the worker's own class `W`.

    Example: recorded(lambda env: env.collect(3, 3)) == Call("collect", (3, 3))
    """
    return cast(Call, request(cast(W, _CallRecorder())))


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
    def run_episodes(
        self, calls: Mapping[int, Call], num_returns: Mapping[int, int]
    ) -> dict[int, tuple[Future[Any], ...]]:
        """Run a generator method on env workers; the rollout worker of each answers its observations.

        calls: by rank of the env worker. num_returns: how many values its generator returns, by rank. Returns a future
        for each value, by rank. Generators that are still running end with an error.
        """

    @abstractmethod
    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        """Return the values, in order. Raises the first failure of any worker of the run at once.

        subject: the name of the values in messages. Raises RunError naming the late workers after `deadline_s`.
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

    @abstractmethod
    def configure(self, config: RunConfig) -> None:
        """Give workers that `replace` starts another configuration."""

    @property
    def can_replace(self) -> bool:
        """Return whether there is still a cluster in which `replace` can start a worker."""
        return True

    @abstractmethod
    def address(self, role: str, rank: int) -> str:
        """Return the IP address at which other nodes reach the worker's node."""

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


class WorkerGroup(Generic[W]):
    """The workers of a role; empty if the role was not started. `W` is their class, so that requests are typed.

    Example::

        actors: WorkerGroup[ActorWorker] = WorkerGroup(workers, "actor")
        actors.call(lambda actor: actor.export(folder), "export", 600.0)
    """

    def __init__(self, workers: Workers, role: str):
        self.role = role
        self._workers = workers

    def __len__(self) -> int:
        return self._workers.sizes.get(self.role, 0)

    def submit(self, rank: int, request: Callable[[W], T]) -> Future[T]:
        """Request a call of one worker."""
        return self._workers.submit(self.role, rank, recorded(request))

    def submit_all(self, request: Callable[[W], T]) -> list[Future[T]]:
        """Request the same call of every worker. Returns futures by rank."""
        call = recorded(request)
        return [self._workers.submit(self.role, rank, call) for rank in range(len(self))]

    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        """Return the values, in order. Raises RunError, see `Workers.wait`."""
        return self._workers.wait(futures, subject, deadline_s)

    def call(self, request: Callable[[W], T], subject: str, deadline_s: float) -> list[T]:
        """Request the same call of every worker, and wait. Returns the values by rank. Raises RunError."""
        return self.wait(self.submit_all(request), subject, deadline_s)

    def call_first(self, request: Callable[[W], T], subject: str, deadline_s: float) -> T:
        """Request a call of the worker of rank 0, and wait. Returns the value. Raises RunError."""
        return self.wait([self.submit(0, request)], subject, deadline_s)[0]


class ActorGroup(WorkerGroup["ActorWorker"]):
    """The actor workers, one FSDP rank each; most requests are collective, so every rank gets them."""

    def __init__(self, workers: Workers, new_failure_handler: Callable[[], Callable[[RunError], None]]):
        """new_failure_handler: returns a handler for one wait: it replaces lost env and rollout workers, or raises."""
        super().__init__(workers, "actor")
        self._new_failure_handler = new_failure_handler

    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        """Return the values. An env or rollout worker that is lost meanwhile is replaced, and the wait goes on.

        Raises RunError if an actor worker is lost, or refuses a message of another worker.
        """
        replace = self._new_failure_handler()

        def handle(failure: RunError) -> None:
            if failure.kind == WRONG_MESSAGE:
                raise failure
            replace(failure)

        outcomes = self._workers.outcomes(futures, subject, deadline_s, handle)
        return cast("list[T]", outcomes)  # the handler has raised failures of actor workers
