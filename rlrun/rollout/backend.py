"""The interface of every rollout backend: a copy of the policy that acts and takes new weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rlrun.data.messages import ActionChunk, Observation, WeightBucket


class RolloutBackend(ABC):
    """Holds one policy version at a time; `policy_version` is -1 until the first weights were applied."""

    policy_version: int
    num_actions: int  # A
    num_proprio: int  # P; 0: the policy takes none

    @abstractmethod
    def act(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        """One batched forward pass over the rows of all observations; one chunk per observation, in order.

        Raises RuntimeError before the first weights. All observations must share `temperature`.
        """

    @abstractmethod
    def apply(self, bucket: WeightBucket) -> None:
        """Stage one bucket (`data.weight_stage.WeightStage` collects and checks); the last one of a version
        makes it current.

        Raises ValueError naming every unknown, missing or mis-shaped tensor; the old version then stays.
        """

    @abstractmethod
    def discard_staged(self) -> None:
        """Forget the buckets of a version that will not be completed."""

    @abstractmethod
    def offload(self) -> None:
        """Leave the accelerator to the actor; weights are still taken, `act` is not possible. Twice does no harm."""

    @abstractmethod
    def onload(self) -> None:
        """Come back to the accelerator. Raises RunError where it has no room."""

    @abstractmethod
    def close(self) -> None:
        """Free the device memory."""
