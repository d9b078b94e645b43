"""PPO with a critic (Schulman et al., 2017), and GRPO, which compares episodes with equal starts (Shao et al., 2024).

Shape legend: T chunk steps, B rows (envs).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.algorithms.advantages import Reduce, first_episodes, gae, group_advantages, normalize
from rlrun.algorithms.algorithm import Advantages, Algorithm, ChunkSteps, Losses, Outputs, Targets
from rlrun.algorithms.losses import clipped_surrogate, combine_losses, entropy_bonus, reference_penalty, value_error
from rlrun.algorithms.spec import PPOConfig
from rlrun.config.schema import AlgorithmConfig


class PPO(Algorithm):
    """PPO: generalised advantage estimation, the clipped surrogate and a clipped value loss."""

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config)
        self._own = config.section(PPOConfig)

    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        raw, returns = gae(
            steps.rewards,
            steps.values,
            steps.next_values,
            steps.terminated,
            ~steps.goes_on,  # where the trace ends, the next value stands for later rewards
            steps.discount,
            self._own.gae_lambda,
        )
        if self._own.normalize_advantages:
            return Advantages(normalize(raw, steps.valid, reduce), steps.valid, raw, returns)
        return Advantages(torch.where(steps.valid, raw, 0.0), steps.valid, raw, returns)

    def loss(self, outputs: Outputs, targets: Targets) -> Losses:
        return combine_losses(
            clipped_surrogate(self.config, outputs, targets),
            entropy_bonus(self.config, outputs, targets),
            reference_penalty(self.config, outputs, targets),
            value_error(self._own, outputs, targets),
        )

    def trains_policy(self, num_updates: int) -> bool:
        return num_updates >= self._own.critic_warmup_steps


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
        return combine_losses(
            clipped_surrogate(self.config, outputs, targets),
            entropy_bonus(self.config, outputs, targets),
            reference_penalty(self.config, outputs, targets),
        )


def _compared(rewards: Tensor, ended: Tensor, valid: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Return (advantages, mask) of one rollout epoch, both [T, B]; all chunk steps of an episode have its advantage."""
    mask = first_episodes(ended, valid)
    scores = torch.where(mask, rewards, 0.0).sum(0)
    return torch.where(mask, group_advantages(scores, group, mask.any(0)), 0.0), mask
