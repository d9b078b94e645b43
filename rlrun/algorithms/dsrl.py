"""Soft actor-critic over the first noise of a frozen flow policy (arXiv 2506.15799).

Shape legend: T chunk steps, B rows (envs), M transitions, W features of an observation, A numbers of the noise.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ChunkSteps, UpdateContext
from rlrun.algorithms.off_policy_spec import DsrlConfig
from rlrun.algorithms.replay_buffer import Transitions
from rlrun.algorithms.soft_actor_critic import Choice, CriticTrainer, SoftActorCritic
from rlrun.config.schema import AlgorithmConfig
from rlrun.edges.trajectories import Trajectory


class SteeredPolicy(Protocol):
    """A policy whose first noise is chosen; it stores the critic features with each action."""

    def steered(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return (the features [M, W], the chosen noise over its bound [M, A]) of its choices [M, ...]."""

    def steer(self, features: Tensor) -> Choice:
        """Return the distribution of the noise for features [M, W]."""


class Dsrl(SoftActorCritic):
    """Critics learn rewards alone, as in DSRL's code for pi0: the entropy of a number per action dimension would
    outweigh sparse rewards. It counts for the actor only.

    The chunk step at which a time limit cuts an episode off is not learned from: the features of the next observation
    would need a pass of the network.
    """

    settings: DsrlConfig

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config, config.section(DsrlConfig))

    def transitions(self, steps: ChunkSteps, trajectory: Trajectory, context: UpdateContext) -> Transitions:
        return transitions(steps, torch.tensor(trajectory.tokens), context.policy)

    def num_steps(self, num_new: float, trainer: CriticTrainer, context: UpdateContext) -> int:
        return 0 if context.num_updates < self.settings.warmup_steps else self.settings.num_updates

    def step(self, context: UpdateContext, trainer: CriticTrainer) -> dict[str, Tensor]:
        settings = self.settings
        policy = context.policy
        count = -(-settings.batch_size // context.world_size)
        batch = self.replay.sample(count, context.random).to(context.device)
        both = policy.steer(torch.cat([batch.features, batch.next_features]))  # one pass, as a sharded module wants it
        normals = torch.randn(2 * len(batch), batch.actions.shape[1], generator=context.random).to(context.device)
        noise, density = both.reparameterized(normals)
        (chosen, following) = noise.chunk(2)
        (own_density, _) = density.chunk(2)
        alpha = trainer.alpha
        with torch.no_grad():
            wanted = batch.rewards + batch.discounts * trainer.targets(batch.next_features, following).amin(0)
        critic_loss = (trainer.critics(batch.features, batch.actions) - wanted).square().mean(1).sum()
        trainer.step_critics(critic_loss)
        value = trainer.critics(batch.features, chosen, is_frozen=True).amin(0)
        is_finite = context.step((alpha * own_density - value).mean())
        entropy = -own_density.detach().mean()
        num_numbers = batch.actions.shape[1]
        trainer.step_alpha(trainer.log_alpha * (entropy - settings.target_entropy * num_numbers))
        trainer.polyak_update(settings.tau)
        return {
            "critic_loss": critic_loss.detach() / settings.num_critics,
            "value_mean": value.detach().mean(),
            "noise_entropy": entropy / num_numbers,
            "alpha": alpha,
            "is_nonfinite": torch.tensor(float(not is_finite), device=context.device),
        }


def transitions(steps: ChunkSteps, tokens: Tensor, policy: SteeredPolicy) -> Transitions:
    """Return the chunk steps that terminated, or whose next one is of the same episode. tokens: [T, B, ...]."""
    features, noise = policy.steered(tokens.flatten(0, 1))
    is_kept = (steps.valid & (steps.terminated | steps.goes_on)).flatten()
    following = torch.arange(len(features)).add(tokens.shape[1]).clamp(max=len(features) - 1)[is_kept]
    discounts = torch.where(steps.terminated, 0.0, steps.discount).flatten()
    return Transitions(
        features[is_kept], noise[is_kept], steps.rewards.flatten()[is_kept], discounts[is_kept], features[following]
    )
