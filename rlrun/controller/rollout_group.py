"""The rollout workers: what the controller asks of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.controller.future import Future, value_of
from rlrun.controller.worker_group import WorkerGroup
from rlrun.data.messages import SharedBucket, WeightBucket

if TYPE_CHECKING:
    from rlrun.workers.rollout_worker import RolloutWorker  # noqa: F401  # named as text in the base class


class RolloutGroup(WorkerGroup["RolloutWorker"]):
    """Each worker holds a copy of the policy and answers its env workers."""

    role = "rollout"

    def join_weight_group(self, address: str, port: int, backend: str) -> list[Future[None]]:
        return self.submit_all(lambda rollout: rollout.join_weight_group(address, port, backend))

    def load(self, rank: int, policy_folder: str, is_final: bool) -> Future[tuple[int, int]]:
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
