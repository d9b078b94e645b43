"""RLPD: soft actor-critic that learns from demonstrations beside what it collects (arXiv 2302.02948).

Shape legend: M transitions, A numbers of a chunk of actions, N critics.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.algorithm import DemonstratedSteps
from rlrun.algorithms.off_policy_spec import RlpdConfig
from rlrun.algorithms.replay_buffer import ReplayBuffer, Transitions
from rlrun.algorithms.sac import Sac
from rlrun.config.schema import AlgorithmConfig


class ScaledPolicy(Protocol):
    """A policy that knows the limits of actions."""

    def scale(self, actions: np.ndarray) -> Tensor:
        """Return actions in simulator units [M, C, A] as numbers between -1 and 1, float32 [M, A]."""


class Rlpd(Sac):
    """Half of each batch is demonstrated. A step's target is the smallest value of a few critics, drawn anew from many
    with layer norms; the policy raises the mean of all."""

    settings: RlpdConfig

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config, RlpdConfig)
        self.demonstrated = ReplayBuffer(1)

    def take_demonstrations(self, shown: DemonstratedSteps, policy: ScaledPolicy) -> None:
        """Keep demonstrations; each rank keeps all of them. A checkpoint does not: they are read again."""
        proprio = torch.from_numpy(shown.proprio)
        following = torch.from_numpy(shown.next_proprio)
        discounts = torch.where(shown.terminated, 0.0, shown.discount)
        self.demonstrated = ReplayBuffer(len(proprio))
        self.demonstrated.add(Transitions(proprio, policy.scale(shown.actions), shown.rewards, discounts, following))

    def sample(self, count: int, random: torch.Generator) -> Transitions:
        """Return half demonstrated transitions, rounded down, and half collected ones."""
        if not len(self.demonstrated):
            raise RuntimeError("take_demonstrations() comes first")
        parts = [self.replay.sample(count - count // 2, random), self.demonstrated.sample(count // 2, random)]
        return Transitions.concatenate(parts)

    def target(self, batch: Transitions, values: Tensor, penalty: Tensor, random: torch.Generator) -> Tensor:
        drawn = torch.randperm(len(values), generator=random)[: self.settings.num_target_critics]
        following = values[drawn.to(values.device)].amin(0)
        return batch.rewards + batch.discounts * (following - penalty * self.settings.is_entropy_target)

    def value(self, values: Tensor) -> Tensor:
        return values.mean(0)
