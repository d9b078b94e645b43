"""All workers of one role, with requests that are typed by the worker's own class."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from rlrun.controller.future import Future, recorded, value_of
from rlrun.controller.workers import Workers
from rlrun.data.message_checks import WRONG_MESSAGE
from rlrun.data.messages import ActionChunk, Observation, PolicySpaces, SharedBucket, Spaces, Trajectory, WeightBucket
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    from rlrun.workers.actor_worker import ActorWorker  # noqa: F401  # named as text in the base class
    from rlrun.workers.env_worker import EnvWorker
    from rlrun.workers.replayed_step import ReplayedStep
    from rlrun.workers.rollout_worker import RolloutWorker  # noqa: F401  # named as text in the base class

T = TypeVar("T")
W = TypeVar("W")

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
