"""The actor ranks: what the controller asks of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rlrun.controller.future import Future, value_of
from rlrun.controller.worker_group import WorkerGroup
from rlrun.controller.workers import Workers
from rlrun.data.messages import SharedBucket, Spaces, Trajectory, WeightBucket
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    from rlrun.workers.actor_worker import ActorWorker  # noqa: F401  # named as text in the base class
    from rlrun.workers.replayed_step import ReplayedStep

T = TypeVar("T")


class ActorGroup(WorkerGroup["ActorWorker"]):
    """One FSDP rank per worker; most requests are collective, so every rank gets them."""

    role = "actor"

    def __init__(self, workers: Workers, new_failure_handler: Callable[[], Callable[[RunError], None]]):
        """new_failure_handler: replaces lost env and rollout workers during one wait, and raises what is final."""
        super().__init__(workers)
        self._new_failure_handler = new_failure_handler

    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        """The values; an env or rollout worker that is lost meanwhile is replaced and does not disturb the wait."""
        outcomes = self._workers.outcomes(futures, subject, deadline_s, self._new_failure_handler())
        return cast("list[T]", outcomes)  # failures of actor workers were raised

    def address(self) -> str:
        """IP address of the node of rank 0."""
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

    def imitate(self, dataset: str) -> list[Future[dict[str, float]]]:
        return self.submit_all(lambda actor: actor.imitate(dataset))

    def update(self, step: int, shards: Sequence[Sequence[Future[Trajectory]]]) -> list[Future[dict[str, float]]]:
        """Train on one step. shards: by rank, from the env workers that hold its rows."""
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

    def restore(self, folder: str) -> list[Future[dict[str, Any]]]:
        return self.submit_all(lambda actor: actor.restore(folder))

    def newest_checkpoint(self, root: str, at_most: str | None) -> list[Future[tuple[str | None, list[str]]]]:
        return self.submit_all(lambda actor: actor.newest_checkpoint(root, at_most))

    def require_whole(self, folder: str) -> list[Future[None]]:
        return self.submit_all(lambda actor: actor.require_whole(folder))

    def export(self, folder: str) -> list[Future[None]]:
        return self.submit_all(lambda actor: actor.export(folder))
