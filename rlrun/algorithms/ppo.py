"""PPO with a critic (Schulman et al., 2017), and GRPO, which compares episodes with equal starts (Shao et al., 2024).

Shape legend: T chunk steps, B rows (envs).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.algorithms.advantages import (
    Reduce,
    chunk_step_advantages,
    gae,
    group_advantages,
    group_sums,
    normalize,
    returns_of_episodes,
)
from rlrun.algorithms.algorithm import Advantages, Algorithm, ChunkSteps, Losses, Outputs, Targets
from rlrun.algorithms.losses import clipped_surrogate, combine_losses, entropy_bonus, reference_penalty, value_error
from rlrun.algorithms.spec import Credit, GRPOConfig, PPOConfig
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

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config)
        self._own = config.section(GRPOConfig)

    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        ended = steps.terminated | steps.truncated
        parts = (x.split(steps.horizon) for x in (steps.rewards, steps.discount, ended, steps.valid))
        compare = chunk_step_advantages if self._own.credit is Credit.step else _of_whole_episodes
        results = []
        for rewards, discount, ends, valid in zip(*parts, strict=True):
            returns, mask = returns_of_episodes(rewards, discount, ends, valid)
            results.append((*compare(returns, mask, steps.group), mask))
        advantages, raw, masks = (torch.cat(part) for part in zip(*results, strict=True))
        return Advantages(advantages, masks, raw)

    def loss(self, outputs: Outputs, targets: Targets) -> Losses:
        return combine_losses(
            clipped_surrogate(self.config, outputs, targets),
            entropy_bonus(self.config, outputs, targets),
            reference_penalty(self.config, outputs, targets),
        )


def _of_whole_episodes(returns: Tensor, mask: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Return (advantages, the same before normalisation) of one rollout epoch, both float [T, B].

    All chunk steps of an episode have its advantage.
    """
    taken = mask.any(0)
    total, count = group_sums(returns[0], group, taken)
    centred = torch.where(count > 1, returns[0] - total / count.clamp(min=1), 0.0)
    advantages = group_advantages(returns[0], group, taken)
    return torch.where(mask, advantages, 0.0), torch.where(mask, centred, 0.0).to(returns.dtype)
