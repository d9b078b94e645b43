"""Proximal policy optimisation with a critic (Schulman et al., 2017).

Shape legend: T chunk steps, B rows (envs).
"""

from __future__ import annotations

import torch

from rlrun.algorithms.advantages import Reduce, gae, normalize
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
    value_error,
)
from rlrun.algorithms.settings import PPOConfig
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
        return joined(
            clipped_surrogate(self.config, outputs, targets),
            entropy_bonus(self.config, outputs, targets),
            reference_penalty(self.config, outputs, targets),
            value_error(self._own, outputs, targets),
        )

    def trains_policy(self, num_updates: int) -> bool:
        return num_updates >= self._own.critic_warmup_steps
