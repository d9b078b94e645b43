"""The interface to the workers of a run, which one process and a Ray cluster both implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from rlrun.data.message_checks import WRONG_MESSAGE
from rlrun.data.messages import (
    ActionChunk,
    Observation,
    PolicySpaces,
    SharedBucket,
    Spaces,
    Span,
    Trajectory,
    WeightBucket,
    WorkerStatus,
)
from rlrun.data.seeds import rollout_of
from rlrun.placement.plan import Plan
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    from rlrun.workers.actor_worker import ActorWorker  # noqa: F401  # named as text in the base class
    from rlrun.workers.env_worker import EnvWorker
    from rlrun.workers.recorder import ReplayedStep
    from rlrun.workers.rollout_worker import RolloutWorker  # noqa: F401  # named as text in the base class


T = TypeVar("T")
W = TypeVar("W")


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

    Example: actors.submit(0, lambda actor: actor.update(step, value_of(shard)))
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


EpisodesRequest = Callable[["EnvWorker"], Generator[Observation, ActionChunk, tuple[Any, ...]]]


class WorkerGroup(Generic[W]):
    """The workers of a role; empty if the role was not started.

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
        """Request the same call of every worker. Returns futures by rank."""
        return [self.submit(rank, request) for rank in range(len(self))]

    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        """Return the values, in order. Raises RunError, see `Workers.wait`."""
        return self._workers.wait(futures, subject, deadline_s)


class EnvGroup(WorkerGroup["EnvWorker"]):
    """The env workers; each steps its share of the envs."""

    role = "env"

    def load(self) -> list[Future[Spaces]]:
        return self.submit_all(lambda env: env.load())

    def show(self, cameras: tuple[int, ...]) -> list[Future[None]]:
        return self.submit_all(lambda env: env.show(cameras))

    def converse(
        self, requests: Mapping[int, EpisodesRequest], num_returns: Mapping[int, int]
    ) -> dict[int, tuple[Future[Any], ...]]:
        """Simulate episodes with actions of the rollout workers. All mappings are by rank, see `Workers.converse`."""
        calls = {rank: recorded(request) for rank, request in requests.items()}
        return self._workers.converse(calls, num_returns)

    def replay(self, folder: str, step: int) -> list[Future[ReplayedStep]]:
        return self.submit_all(lambda env: env.replay(folder, step))

    def record_demos(self, folder: str) -> list[Future[str]]:
        return self.submit_all(lambda env: env.record_demos(folder))

    def write_demos(self, folder: str, parts: list[str]) -> Future[None]:
        return self.submit(0, lambda env: env.write_demos(folder, parts))


class RolloutGroup(WorkerGroup["RolloutWorker"]):
    """The rollout workers; each holds a copy of the policy and answers its env workers."""

    role = "rollout"

    def join_weight_group(self, address: str, port: int, backend: str) -> list[Future[None]]:
        return self.submit_all(lambda rollout: rollout.join_weight_group(address, port, backend))

    def load(self, rank: int, policy_folder: str, is_final: bool) -> Future[PolicySpaces]:
        return self.submit(rank, lambda rollout: rollout.load(policy_folder, is_final))

    def apply(self, bucket: Future[WeightBucket | SharedBucket]) -> list[Future[int]]:
        return self.submit_all(lambda rollout: rollout.apply(value_of(bucket)))

    def receive(self) -> list[Future[int]]:
        return self.submit_all(lambda rollout: rollout.receive())

    def discard_weights(self) -> list[Future[None]]:
        return self.submit_all(lambda rollout: rollout.discard_weights())

    def offload(self) -> list[Future[None]]:
        return self.submit_all(lambda rollout: rollout.offload())

    def onload(self) -> list[Future[None]]:
        return self.submit_all(lambda rollout: rollout.onload())


class ActorGroup(WorkerGroup["ActorWorker"]):
    """The actor workers, one FSDP rank each; most requests are collective, so every rank gets them."""

    role = "actor"

    def __init__(self, workers: Workers, new_failure_handler: Callable[[], Callable[[RunError], None]]):
        """new_failure_handler: returns a handler for one wait: it replaces lost env and rollout workers, or raises."""
        super().__init__(workers)
        self._new_failure_handler = new_failure_handler

    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        """Return the values. An env or rollout worker that is lost meanwhile is replaced, and the wait goes on.

        Raises RunError if an actor worker is lost, or refuses what another worker sent.
        """
        replace = self._new_failure_handler()

        def handle(failure: RunError) -> None:
            if failure.kind == WRONG_MESSAGE:
                raise failure
            replace(failure)

        outcomes = self._workers.outcomes(futures, subject, deadline_s, handle)
        return cast("list[T]", outcomes)  # the handler has raised failures of actor workers

    def address(self) -> str:
        """Return the IP address of the node of rank 0."""
        return self._workers.address(self.role, 0)

    def free_port(self, address: str) -> Future[int]:
        return self.submit(0, lambda actor: actor.free_port(address))

    def join(self, address: str, port: int, backend: str) -> list[Future[None]]:
        return self.submit_all(lambda actor: actor.join(address, port, backend))

    def open_weight_group(self, address: str, port: int) -> Future[int]:
        return self.submit(0, lambda actor: actor.open_weight_group(address, port))

    def join_weight_group(self, backend: str) -> Future[None]:
        return self.submit(0, lambda actor: actor.join_weight_group(backend))

    def load(self, rank: int, policy_folder: str) -> Future[None]:
        return self.submit(rank, lambda actor: actor.load(policy_folder))

    def begin_policy(self, spaces: Spaces, folder: str) -> Future[None]:
        return self.submit(0, lambda actor: actor.begin_policy(spaces, folder))

    def imitate(self, dataset: str, cameras: tuple[str, ...], world: Spaces) -> list[Future[dict[str, float]]]:
        return self.submit_all(lambda actor: actor.imitate(dataset, cameras, world))

    def update(self, step: int, shards: Sequence[Sequence[Future[Trajectory]]]) -> list[Future[dict[str, float]]]:
        """Train on one step. shards: by rank, from the env workers with its rows."""
        return [self._update(rank, step, own) for rank, own in enumerate(shards)]

    def _update(self, rank: int, step: int, shards: Sequence[Future[Trajectory]]) -> Future[dict[str, float]]:
        return self.submit(rank, lambda actor: actor.update(step, *map(value_of, shards)))

    def replay(self, folder: str, step: int) -> list[Future[ReplayedStep]]:
        return self.submit_all(lambda actor: actor.replay(folder, step))

    def num_buckets(self) -> Future[int]:
        return self.submit(0, lambda actor: actor.num_buckets())

    def pack(self, version: int, index: int, is_shared: bool) -> list[Future[WeightBucket | SharedBucket | None]]:
        """Gather bucket `index` of the weights on all ranks; rank 0 returns it."""
        return self.submit_all(lambda actor: actor.pack(version, index, is_shared))

    def broadcast(self, version: int) -> list[Future[None]]:
        return self.submit_all(lambda actor: actor.broadcast(version))

    def offload(self) -> list[Future[None]]:
        return self.submit_all(lambda actor: actor.offload())

    def onload(self) -> list[Future[None]]:
        return self.submit_all(lambda actor: actor.onload())

    def save(self, root: str, driver_state: dict[str, Any], is_best: bool) -> list[Future[str]]:
        return self.submit_all(lambda actor: actor.save(root, driver_state, is_best))

    def begin_save(self, root: str, driver_state: dict[str, Any], is_best: bool) -> list[Future[str]]:
        return self.submit_all(lambda actor: actor.begin_save(root, driver_state, is_best))

    def is_saved(self) -> Future[bool]:
        return self.submit(0, lambda actor: actor.is_saved())

    def finish_save(self, folder: str) -> list[Future[None]]:
        return self.submit_all(lambda actor: actor.finish_save(folder))

    def try_disk(self, folder: str, num_bytes: int) -> Future[float]:
        return self.submit(0, lambda actor: actor.try_disk(folder, num_bytes))

    def restore(self, folder: str) -> list[Future[dict[str, Any]]]:
        return self.submit_all(lambda actor: actor.restore(folder))

    def newest_checkpoint(self, root: str, at_most: str | None) -> list[Future[tuple[str | None, list[str]]]]:
        return self.submit_all(lambda actor: actor.newest_checkpoint(root, at_most))

    def require_whole(self, folder: str) -> list[Future[None]]:
        return self.submit_all(lambda actor: actor.require_whole(folder))

    def export(self, folder: str) -> list[Future[None]]:
        return self.submit_all(lambda actor: actor.export(folder))
