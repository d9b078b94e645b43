"""The interface of rollout backends: a copy of the policy that chooses actions and receives new weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.edges.actions import ActionChunk
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation
from rlrun.edges.weights import WeightBucket

if TYPE_CHECKING:
    from torch import Tensor

    from rlrun.policies.policy import Policy


class RolloutBackend(ABC):
    """Holds one policy version at a time; `policy_version` is -1 before the first weights are applied."""

    policy_version: int
    num_actions: int  # A
    num_proprio: int  # P; 0: the policy uses no proprioception
    notes: tuple[str, ...] = ()  # what the user should know about the policy, a sentence each

    @abstractmethod
    def act(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        """Run one batched forward pass over the rows of all observations. Returns one chunk per observation, in order.

        Raises RuntimeError before the first weights. All observations must share `temperature`.
        """

    @abstractmethod
    def apply(self, bucket: WeightBucket) -> None:
        """Take one bucket (`rlrun.edges.buckets.WeightStage` checks them).

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
        """Free the accelerator for the actor. `apply` still works, `act` does not. May be called twice.

        While offloaded, and after `onload`, buckets stay in the sender's memory until it sends the next version.
        Weights that the next version replaces anyway may be dropped.
        """

    @abstractmethod
    def onload(self, check: Callable[[WeightBucket], None] = lambda bucket: None) -> None:
        """Move weights back to the accelerator, the newest that were applied. Raises RunError if it lacks memory.

        check: called with each bucket that this takes from host memory, once it is on the accelerator; may raise.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the device memory."""


@dataclass(frozen=True, eq=False)
class ForwardBatch:
    """Rows that need actions, followed by final frames, which only need values.

    Example: two observations of 8 rows, one of them with 3 final frames, give 16 acting rows and 3 final rows.
    """

    observations: tuple[Observation, ...]
    temperature: float  # 0: the most likely tokens

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> ForwardBatch:
        """Make the batch of observations. Raises ValueError if their temperatures differ."""
        temperatures = {observation.temperature for observation in observations}
        if len(temperatures) > 1:
            raise ValueError(f"act() got observations of temperatures {sorted(temperatures)}; use separate calls")
        return cls(tuple(observations), temperatures.pop())

    @cached_property
    def acting(self) -> Frames:
        """The rows that need actions."""
        return Frames.concatenate([observation.frames for observation in self.observations])

    @cached_property
    def final(self) -> Frames | None:
        """The rows that only need values, or None."""
        parts = [observation.final_frames for observation in self.observations if observation.final_frames is not None]
        return Frames.concatenate(parts) if parts else None

    @property
    def all_rows(self) -> Frames:
        """Acting rows, followed by final rows."""
        return self.acting if self.final is None else Frames.concatenate([self.acting, self.final])

    @property
    def keys(self) -> np.ndarray:
        """Sampling keys of the acting rows, uint64 [rows]."""
        return np.concatenate([observation.sampling_keys for observation in self.observations])

    @property
    def continues(self) -> bool:
        """Whether the rows go on with coming actions: all of an evaluation with real-time chunking."""
        return all(observation.coming is not None for observation in self.observations)

    @property
    def coming(self) -> tuple[np.ndarray, np.ndarray]:
        """The coming actions of the acting rows, float32 [B, L, A], and bool [B], whether a row has any."""
        num_coming = max(coming.shape[1] for coming in self._of_rows)
        arrays = [np.pad(coming, [(0, 0), (0, num_coming - coming.shape[1]), (0, 0)]) for coming in self._of_rows]
        is_first = [observation.is_first for observation in self.observations if observation.is_first is not None]
        return np.concatenate(arrays), ~np.concatenate(is_first)

    @property
    def _of_rows(self) -> list[np.ndarray]:
        return [observation.coming for observation in self.observations if observation.coming is not None]

    def chunks(
        self,
        actions: np.ndarray,
        tokens: np.ndarray,
        logprobs: np.ndarray,
        values: np.ndarray,
        final_values: np.ndarray,
        policy_version: int,
        further: np.ndarray | None = None,
    ) -> list[ActionChunk]:
        """Return one chunk per observation. `final_values` belong to final rows, all other arrays to acting rows."""
        chunks = []
        start = 0
        final_start = 0
        for observation in self.observations:
            rows = slice(start, start + len(observation.frames))
            finals = None
            if observation.final_frames is not None:
                finals = final_values[final_start : final_start + len(observation.final_frames)]
                final_start += len(finals)
            of_rows = actions[rows], tokens[rows], logprobs[rows], values[rows]
            beyond = None if further is None else further[rows]
            chunks.append(ActionChunk.answer(observation, *of_rows, finals, policy_version, beyond))
            start = rows.stop
        return chunks


def unsent_names(policy: Policy, config: RunConfig) -> set[str]:
    """The module's names of weights that stay as the policy folder has them, whatever the actor learns."""
    from rlrun.policies.adapters import adapted_layers, unchanging_names  # imports torch

    lora = config.actor.lora
    dead = policy.frozen_names()
    if lora.rank == 0:
        return dead
    adapted = {f"{name}.weight" for name in adapted_layers(policy.module, lora, dead)}
    return unchanging_names((name for name, _ in policy.module.named_parameters()), adapted, dead, lora)
