"""Policy gradients without a critic: RLOO (arXiv 2402.14740) and REINFORCE++ (arXiv 2501.03262).

Both learn from whole episodes. With one minibatch and one update epoch, the clipped surrogate that they share with PPO
is REINFORCE's gradient. Shape legend: T chunk steps, B rows (envs).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.algorithms.advantages import Reduce, first_episodes, group_sums, normalize, returns_to_go
from rlrun.algorithms.algorithm import Advantages, Algorithm, ChunkSteps, Losses, Outputs, Targets
from rlrun.algorithms.losses import clipped_surrogate, combine_losses, entropy_bonus, reference_penalty
from rlrun.algorithms.spec import ReinforcePlusPlusConfig
from rlrun.config.schema import AlgorithmConfig


class CriticFree(Algorithm):
    """The loss that both share; they differ in their advantages."""

    def loss(self, outputs: Outputs, targets: Targets) -> Losses:
        return combine_losses(
            clipped_surrogate(self.config, outputs, targets),
            entropy_bonus(self.config, outputs, targets),
            reference_penalty(self.config, outputs, targets),
        )


class Rloo(CriticFree):
    """RLOO: the advantage of an episode is its return less the mean return of the others in its group."""

    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        parts = []
        for rewards, mask in _epochs(steps):
            scores, took_part = torch.where(mask, rewards, 0.0).sum(0), mask.any(0)
            total, count = group_sums(scores, steps.group, took_part)
            others = (total - scores) / (count - 1).clamp(min=1)
            advantage = torch.where(took_part & (count > 1), scores - others, 0.0)
            parts.append((torch.where(mask, advantage, 0.0), mask))
        advantages, masks = (torch.cat(part) for part in zip(*parts, strict=True))
        return Advantages(advantages, masks, advantages)


class ReinforcePlusPlus(CriticFree):
    """REINFORCE++: the discounted return from each chunk step on, normalised over the batches of all ranks.

    With groups, each return is first compared with the mean return of its group, which the paper calls the baseline
    variant.
    """

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config)
        self._own = config.section(ReinforcePlusPlusConfig)

    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        parts, discounts = [], steps.discount.split(steps.horizon)
        for (rewards, mask), discount in zip(_epochs(steps), discounts, strict=True):
            returns = returns_to_go(torch.where(mask, rewards, 0.0), discount)
            if self._own.group_size > 1:
                total, count = group_sums(torch.where(mask, rewards, 0.0).sum(0), steps.group, mask.any(0))
                returns = returns - total / count.clamp(min=1)
            parts.append((returns, mask))
        raw, masks = (torch.cat(part) for part in zip(*parts, strict=True))
        return Advantages(normalize(raw, masks, reduce), masks, torch.where(masks, raw, 0.0))


def _epochs(steps: ChunkSteps) -> list[tuple[Tensor, Tensor]]:
    """Return (rewards, mask of the episode) of each rollout epoch, both [T, B]: a row has one episode in each."""
    ended = steps.terminated | steps.truncated
    parts = zip(*(x.split(steps.horizon) for x in (steps.rewards, ended, steps.valid)), strict=True)
    return [(rewards, first_episodes(ends, valid)) for rewards, ends, valid in parts]
