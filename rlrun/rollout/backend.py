"""The interface of rollout backends: a copy of the policy that chooses actions and receives new weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlrun.data.messages import ActionChunk, Observation, WeightBucket

if TYPE_CHECKING:
    from torch import Tensor


class RolloutBackend(ABC):
    """Holds one policy version at a time; `policy_version` is -1 before the first weights are applied."""

    policy_version: int
    num_actions: int  # A
    num_proprio: int  # P; 0: the policy uses no proprioception

    @abstractmethod
    def act(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        """Run one batched forward pass over the rows of all observations. Returns one chunk per observation, in order.

        Raises RuntimeError before the first weights. All observations must share `temperature`.
        """

    @abstractmethod
    def apply(self, bucket: WeightBucket) -> None:
        """Take one bucket (`data.weight_stage.WeightStage` checks them).

        The last bucket of a version makes it the current version. A backend that writes into its weights as buckets
        arrive has no version from the first to the last: `policy_version` is -1, `act` raises. Others keep the old one.
        Raises ValueError naming every unknown, missing or mis-shaped tensor; the next version can be sent then.
        """

    @abstractmethod
    def discard_staged(self) -> None:
        """Forget the buckets of an incomplete version, so that a whole one can be sent."""

    def held(self, name: str) -> Tensor | None:
        """Return a weight as the policy has it now, under the name that it is sent by.

        None: there is no such weight, or it is in another form or process.
        """
        return None

    @abstractmethod
    def offload(self) -> None:
        """Move weights off the accelerator for the actor. `apply` still works, `act` does not. May be called twice."""

    @abstractmethod
    def onload(self) -> None:
        """Move weights back to the accelerator. Raises RunError if its memory does not suffice."""

    @abstractmethod
    def close(self) -> None:
        """Free the device memory."""
