"""Group relative policy optimisation (Shao et al., 2024): compares episodes with equal starts, without a critic.

Shape legend: T chunk steps, B rows (envs).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.algorithms.advantages import Reduce, first_episodes, group_advantages
from rlrun.algorithms.algorithm import (
    Advantages,
    Algorithm,
    ChunkSteps,
    Losses,
    Outputs,
    Targets,
    clipped_surrogate,
    entropy_bonus,
    joined,
    reference_penalty,
)


class GRPO(Algorithm):
    """GRPO: advantages from the returns of a group of episodes, and the clipped surrogate."""

    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        ended = steps.terminated | steps.truncated
        rewards, ends, valid = (x.split(steps.horizon) for x in (steps.rewards, ended, steps.valid))
        by_epoch = [_compared(*epoch, steps.group) for epoch in zip(rewards, ends, valid, strict=True)]
        compared, masks = zip(*by_epoch, strict=True)
        advantages = torch.cat(compared)
        return Advantages(advantages, torch.cat(masks), advantages)

    def loss(self, outputs: Outputs, targets: Targets) -> Losses:
        return joined(
            clipped_surrogate(self.config, outputs, targets),
            entropy_bonus(self.config, outputs, targets),
            reference_penalty(self.config, outputs, targets),
        )


def _compared(rewards: Tensor, ended: Tensor, valid: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Return (advantages, mask) of one rollout epoch, both [T, B]; all chunk steps of an episode have its advantage."""
    mask = first_episodes(ended, valid)
    scores = torch.where(mask, rewards, 0.0).sum(0)
    return torch.where(mask, group_advantages(scores, group, mask.any(0)), 0.0), mask
