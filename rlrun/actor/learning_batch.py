"""From a trajectory to what the losses take: advantages, returns and masks, one row per chunk step.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, A action dimensions,
K = C*A tokens, N cameras, M = T*B flat rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.advantages import (
    Reduce,
    chunk_rewards,
    first_episodes,
    gae,
    group_advantages,
    normalize,
)
from rlrun.config.schema import Algorithm, AlgorithmConfig, RewardType
from rlrun.data.messages import Trajectory


@dataclass(frozen=True, eq=False)
class LearningBatch:
    """M chunk steps of one rank, in host memory; `usable` lists the rows that may be learned from."""

    images: np.ndarray  # uint8 [M, N, H, W, 3]
    proprio: np.ndarray  # float32 [M, P]
    instructions: tuple[str, ...]  # distinct sentences
    instruction_index: np.ndarray  # int16 [M]
    tokens: Tensor  # uint8 [M, K]
    old_logprobs: Tensor  # float32 [M, K], of the policy that acted
    proximal_logprobs: Tensor  # float32 [M, K], of the policy that ratios are taken against
    old_values: Tensor  # float32 [M]
    advantages: Tensor  # float32 [M]
    returns: Tensor  # float32 [M]
    raw_advantages: Tensor  # float32 [M], before normalisation
    row_mask: Tensor  # bool [M]
    token_mask: Tensor  # bool [M, K]; tokens of control steps that were not executed are False

    @property
    def usable(self) -> np.ndarray:
        """int [<= M]: indices of usable rows."""
        return np.flatnonzero(self.row_mask.numpy())

    def sentences(self, rows: np.ndarray) -> tuple[str, ...]:
        """The instruction of each row."""
        return tuple(self.instructions[i] for i in self.instruction_index[rows])


def learning_batch(trajectory: Trajectory, config: AlgorithmConfig, reduce: Reduce) -> LearningBatch:
    """Advantages (normalised over all ranks), returns and masks of one rank's trajectory.

    `reduce` sums a tensor over the ranks; every rank must call this.
    """
    tensors = {
        name: torch.tensor(getattr(trajectory, name))  # a copy: arrays from the object store are read-only
        for name in ("rewards", "step_valid", "values", "next_values", "terminated", "truncated", "valid", "group")
    }
    rewards, discount = chunk_rewards(
        tensors["rewards"], tensors["step_valid"], config.gamma, config.reward_type is RewardType.action
    )
    if config.name is Algorithm.grpo:
        raw, mask = _grpo(tensors, rewards)
        advantages, returns = raw, torch.zeros_like(raw)
    else:
        raw, returns, mask = _ppo(tensors, rewards, discount, config.gae_lambda)
        advantages = normalize(raw, mask, reduce) if config.normalize_advantages else torch.where(mask, raw, 0.0)
    num_actions = trajectory.tokens.shape[-1] // trajectory.step_valid.shape[-1]
    logprobs = torch.tensor(_flat(trajectory.logprobs))
    token_mask = (tensors["step_valid"] & mask.unsqueeze(-1)).repeat_interleave(num_actions, dim=-1)
    return LearningBatch(
        images=_flat(trajectory.images),
        proprio=_flat(trajectory.proprio),
        instructions=trajectory.instructions,
        instruction_index=_flat(trajectory.instruction_index),
        tokens=torch.tensor(_flat(trajectory.tokens)),
        old_logprobs=logprobs,
        proximal_logprobs=logprobs,
        old_values=tensors["values"].flatten(),
        advantages=advantages.flatten(),
        returns=returns.flatten(),
        raw_advantages=raw.flatten(),
        row_mask=mask.flatten(),
        token_mask=token_mask.flatten(0, 1),
    )


def _flat(array_TB: np.ndarray) -> np.ndarray:
    return array_TB.reshape(array_TB.shape[0] * array_TB.shape[1], *array_TB.shape[2:])


def _ppo(tensors: dict[str, Tensor], rewards: Tensor, discount: Tensor, gae_lambda: float) -> tuple:
    mask = tensors["valid"]
    # the trace must not run across a gap of invalid steps; bootstrapping from next_values still may
    follower_is_valid = torch.cat([mask[1:], torch.ones_like(mask[:1])])
    advantages, returns = gae(
        rewards,
        tensors["values"],
        tensors["next_values"],
        tensors["terminated"],
        tensors["truncated"] | ~mask | ~follower_is_valid,
        discount,
        gae_lambda,
    )
    return advantages, returns, mask


def _grpo(tensors: dict[str, Tensor], rewards: Tensor) -> tuple[Tensor, Tensor]:
    """The first episode of each row is compared with those of its group: they share the reset seed."""
    mask = first_episodes(tensors["terminated"] | tensors["truncated"], tensors["valid"])
    scores = torch.where(mask, rewards, 0.0).sum(0)
    advantages = group_advantages(scores, tensors["group"], mask.any(0))
    return torch.where(mask, advantages, 0.0), mask
