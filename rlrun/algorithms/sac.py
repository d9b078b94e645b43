"""Soft actor-critic (arXiv 1812.05905) of policies of states, whose actions are tanh of normal numbers.

Shape legend: T chunk steps, B rows (envs), M transitions, P proprioception, A numbers of a chunk of actions, N critics.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ChunkSteps, UpdateContext
from rlrun.algorithms.off_policy_spec import SacConfig
from rlrun.algorithms.replay_buffer import Transitions
from rlrun.algorithms.soft_actor_critic import Choice, CriticTrainer, SoftActorCritic
from rlrun.config.schema import AlgorithmConfig
from rlrun.edges.trajectories import Trajectory


class SquashedPolicy(Protocol):
    """A policy of proprioception, as `rlrun.policies.actor_critic` with `distribution=squashed`."""

    def squash(self, tokens: Tensor) -> Tensor:
        """Return the chosen numbers between -1 and 1, [M, A], of its choices [M, ...]."""

    def normalized(self, proprio: Tensor) -> Tensor:
        """Return the proprioception as its networks read it, float32 [M, P]; the critics read the same."""

    def choose(self, proprio: Tensor) -> Choice:
        """Return the distribution for proprioception, float32 [M, P]."""


class Sac(SoftActorCritic):
    """Every valid chunk step is learned from. Where a time limit cut an episode off, the value of the last observation
    counts as if it went on."""

    settings: SacConfig

    def __init__(self, config: AlgorithmConfig, section: type[SacConfig] = SacConfig):
        super().__init__(config, config.section(section))

    def transitions(self, steps: ChunkSteps, trajectory: Trajectory, context: UpdateContext) -> Transitions:
        policy: SquashedPolicy = context.policy
        return transitions(steps, trajectory, policy)

    def num_steps(self, num_new: float, trainer: CriticTrainer, context: UpdateContext) -> int:
        """Steps follow the number of transitions after the warm-up, so that none is lost to rounding."""
        per_transition = self.settings.update_ratio / self.settings.critic_steps
        before = max(0.0, float(trainer.num_collected) - self.settings.warmup)
        after = max(0.0, float(trainer.num_collected) + num_new - self.settings.warmup)
        return math.floor(after * per_transition) - math.floor(before * per_transition)

    def step(self, context: UpdateContext, trainer: CriticTrainer) -> dict[str, Tensor]:
        """The policy learns from the last batch of the critics, with the critics that they then are.

        It stays the same until then, so that one pass serves all batches.
        """
        settings = self.settings
        policy = context.policy
        random = context.random
        count = -(-settings.batch_size // context.world_size)
        batches = [self.sample(count, random).to(context.device) for _ in range(settings.critic_steps)]
        last = batches[-1]
        num_numbers = batches[-1].actions.shape[1]
        choice: Choice = policy.choose(torch.cat([last.features, *(batch.next_features for batch in batches)]))
        normals = torch.randn(count * (1 + len(batches)), num_numbers, generator=random).to(context.device)
        actions, densities = choice.reparameterized(normals)
        alpha = trainer.alpha
        losses = []
        following = zip(actions.split(count)[1:], densities.split(count)[1:], strict=True)
        for batch, (next_actions, next_densities) in zip(batches, following, strict=True):
            with torch.no_grad():
                values = trainer.targets(policy.normalized(batch.next_features), next_actions)
                wanted = self.target(batch, values, alpha * next_densities, random)
            q_values = trainer.critics(policy.normalized(batch.features), batch.actions)
            loss = (q_values - wanted).square().mean(1).sum()
            trainer.step_critics(loss)
            trainer.polyak_update(settings.tau)
            losses.append(loss.detach() / settings.num_critics)
        value = self.value(trainer.critics(policy.normalized(last.features), actions[:count], is_frozen=True))
        is_finite = context.step((alpha * densities[:count] - value).mean())
        entropy = -densities[:count].detach().mean()
        trainer.step_alpha(trainer.log_alpha.exp() * (entropy - settings.target_entropy * num_numbers))
        return {
            "critic_loss": torch.stack(losses).mean(),
            "value_mean": value.detach().mean(),
            "action_entropy": entropy / num_numbers,
            "alpha": alpha,
            "is_nonfinite": torch.tensor(float(not is_finite), device=context.device),
        }

    def sample(self, count: int, random: torch.Generator) -> Transitions:
        """Return the transitions of one step of the critics."""
        return self.replay.sample(count, random)

    def target(self, batch: Transitions, values: Tensor, penalty: Tensor, random: torch.Generator) -> Tensor:
        """Return the critics' targets, [M]. values: of the next state, [N, M]; penalty: alpha * log-density, [M]."""
        return batch.rewards + batch.discounts * (values.amin(0) - penalty)

    def value(self, values: Tensor) -> Tensor:
        """Return the values that the policy raises, [M], of those of all critics, [N, M]."""
        return values.amin(0)


def transitions(steps: ChunkSteps, trajectory: Trajectory, policy: SquashedPolicy) -> Transitions:
    """Return all valid chunk steps."""
    assert trajectory.next_proprio is not None, "its rollout rule asks for it"
    is_kept = steps.valid.flatten()
    proprio, following, tokens = (
        torch.tensor(array.reshape(len(is_kept), *array.shape[2:]))[is_kept]
        for array in (trajectory.proprio, trajectory.next_proprio, trajectory.tokens)
    )
    discounts = torch.where(steps.terminated, 0.0, steps.discount).flatten()[is_kept]
    return Transitions(proprio, policy.squash(tokens), steps.rewards.flatten()[is_kept], discounts, following)
