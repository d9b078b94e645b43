"""REINFORCE with a leave-one-out baseline (RLOO), normalized over the whole batch (REINFORCE++).

Shape legend: T chunk steps, B rows (envs).
"""

from __future__ import annotations

import torch

from reinforce_plus.spec import ReinforcePlusConfig
from rlrun.algorithms.advantages import Reduce, normalize
from rlrun.algorithms.algorithm import (
    Advantages,
    Algorithm,
    ChunkSteps,
    Losses,
    LossTerm,
    Outputs,
    Reduction,
    Targets,
)
from rlrun.algorithms.losses import aggregate, combine_losses, entropy_bonus, masked, reference_penalty


class ReinforcePlus(Algorithm):
    """Returns in place of a critic; each minibatch is learned from as it was collected, without a clip."""

    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        returns = torch.zeros_like(steps.rewards)
        following = torch.zeros_like(steps.rewards[0])
        rewards = masked(steps.rewards, steps.valid)
        for t in reversed(range(len(rewards))):
            following = rewards[t] + torch.where(steps.goes_on[t], steps.discount[t] * following, 0.0)
            returns[t] = following
        raw = returns
        if self.config.section(ReinforcePlusConfig).has_baseline:
            num_others = steps.valid.sum(1, keepdim=True) - steps.valid.int()
            others = masked(returns, steps.valid).sum(1, keepdim=True) - masked(returns, steps.valid)
            raw = returns - others / num_others.clamp(min=1)
        return Advantages(normalize(raw, steps.valid, reduce), steps.valid, raw)

    def loss(self, outputs: Outputs, targets: Targets) -> Losses:
        mask = targets.unit_mask
        log_ratio = masked(outputs.unit_logprobs - targets.proximal_logprobs, mask)
        weights = log_ratio.exp().clamp(max=2.0).detach()  # of an importance-weighted gradient
        gain = weights * masked(outputs.unit_logprobs, mask) * targets.advantages.unsqueeze(-1)
        mean = aggregate(-gain, mask, self.config.aggregation.value, targets.episode_units)
        reinforce = Losses([LossTerm(mean, Reduction.units, name="policy_loss")])
        shared = (outputs, targets)
        return combine_losses(reinforce, entropy_bonus(self.config, *shared), reference_penalty(self.config, *shared))
