"""Policy gradients without a critic: RLOO (arXiv 2402.14740) and REINFORCE++ (arXiv 2501.03262).

Both learn from whole episodes. With one minibatch and one update epoch, the clipped surrogate that they share with PPO
is REINFORCE's gradient. Shape legend: T chunk steps, B rows (envs).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.algorithms.advantages import Reduce, group_sums, group_sums_by_step, normalize, returns_of_episodes
from rlrun.algorithms.algorithm import Advantages, Algorithm, ChunkSteps, Losses, Outputs, Targets
from rlrun.algorithms.losses import clipped_surrogate, combine_losses, entropy_bonus, reference_penalty
from rlrun.algorithms.spec import Credit, ReinforcePlusPlusConfig, RlooConfig
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
    """RLOO: the advantage is the return less the mean return of the others in the group.

    With `credit=step` it is that of a chunk step, against the others at the same time; else that of the episode.
    """

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config)
        self._own = config.section(RlooConfig)

    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        parts = []
        for returns, mask in _epochs(steps):
            if self._own.credit is Credit.step:
                total, count = group_sums_by_step(returns, mask, steps.group)
            else:
                returns = returns[:1].expand_as(returns)
                of_rows = group_sums(returns[0], steps.group, mask.any(0))
                total, count = (x.expand_as(returns) for x in of_rows)
            others = (total - returns) / (count - 1).clamp(min=1)
            parts.append((torch.where(mask & (count > 1), returns - others, 0.0).to(returns.dtype), mask))
        advantages, masks = (torch.cat(part) for part in zip(*parts, strict=True))
        return Advantages(advantages, masks, advantages)


class ReinforcePlusPlus(CriticFree):
    """REINFORCE++: the discounted return from each chunk step on, normalised over the batches of all ranks.

    With groups, each return is first compared with the group's mean of the same quantity at the same time. That is the
    paper's baseline variant, which compares outcomes of answers, where the episodes of a group are equally long.
    """

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config)
        self._own = config.section(ReinforcePlusPlusConfig)

    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        parts = []
        for returns, mask in _epochs(steps):
            if self._own.group_size > 1:
                total, count = group_sums_by_step(returns, mask, steps.group)
                returns = (returns - total / count.clamp(min=1)).to(returns.dtype)
            parts.append((returns, mask))
        raw, masks = (torch.cat(part) for part in zip(*parts, strict=True))
        return Advantages(normalize(raw, masks, reduce), masks, torch.where(masks, raw, 0.0))


def _epochs(steps: ChunkSteps) -> list[tuple[Tensor, Tensor]]:
    """Return (returns to go, mask) of each rollout epoch, both [T, B]: a row has one episode in each."""
    ended = steps.terminated | steps.truncated
    parts = (x.split(steps.horizon) for x in (steps.rewards, steps.discount, ended, steps.valid))
    return [returns_of_episodes(*epoch) for epoch in zip(*parts, strict=True)]
