"""Soft actor-critic (Haarnoja et al., 2018) over the first noise of a frozen flow policy (arXiv 2506.15799).

Shape legend: T chunk steps, B rows (envs), M transitions, W features of an observation, A numbers of the noise,
N critics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ChunkSteps, Learning, OffPolicyAlgorithm
from rlrun.algorithms.dsrl.critic_trainer import CriticTrainer
from rlrun.algorithms.dsrl.replay_buffer import ReplayBuffer, Transitions
from rlrun.algorithms.dsrl.settings import DsrlConfig
from rlrun.config.schema import AlgorithmConfig
from rlrun.data.messages import Trajectory


class Noise(Protocol):
    """A distribution of the first noise."""

    def reparameterized(self, normals: Tensor) -> tuple[Tensor, Tensor]:
        """Return (noise over its bound [M, A], its log-density [M]). normals: float32 [M, A]."""


class SteeredPolicy(Protocol):
    """A policy that acts by a chosen first noise, and keeps in its choices what it chose it by."""

    def steered(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return (the features [M, W], the chosen noise over its bound [M, A]) of its choices [M, ...]."""

    def steer(self, features: Tensor) -> Noise:
        """Return the distribution of the noise for features [M, W]."""


class Dsrl(OffPolicyAlgorithm):
    """The noise actor is the policy's; critics, their targets and the entropy's weight are kept here.

    Critics learn rewards alone, as in DSRL's code for pi0: the entropy of a number per action dimension would outweigh
    sparse rewards. It counts for the actor only.

    The chunk step at which a time limit cuts an episode off is not learned from: the next observation is not
    in the trajectory.
    """

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config)
        self._own = config.section(DsrlConfig)
        self._replay = ReplayBuffer(self._own.replay_size)
        self._trainer: CriticTrainer | None = None  # their sizes are those of the first transitions
        self._loaded: Mapping[str, Tensor] = {}

    def update(self, steps: ChunkSteps, trajectory: Trajectory, learning: Learning) -> dict[str, float]:
        policy: SteeredPolicy = learning.policy
        new = transitions(steps, torch.tensor(trajectory.tokens), policy)
        self._replay.add(new)
        is_early = learning.num_updates < self._own.warmup_steps
        metrics = {"num_chunk_steps": float(learning.sum(steps.valid.sum().double().reshape(1)))}
        if learning.any(is_early or not len(self._replay)):
            return metrics | {"num_optimizer_steps": 0.0, "num_nonfinite": 0.0}
        if self._trainer is None:
            self._trainer = CriticTrainer(self._own, new.features.shape[1], new.noise.shape[1], learning)
            self._trainer.load_state_dict(self._loaded)
            self._loaded = {}
        count = math.ceil(self._own.batch_size / learning.world_size)
        sums: dict[str, Tensor] = {}
        for _ in range(self._own.num_updates):
            batch = self._replay.sample(count, learning.random).to(learning.device)
            for name, number in self._step(batch, policy, learning, self._trainer).items():
                sums[name] = sums.get(name, 0.0) + number
        means = torch.stack(list(sums.values())).double() / self._own.num_updates
        found = dict(zip(sums, (learning.sum(means.cpu()) / learning.world_size).tolist(), strict=True))
        num_nonfinite = found.pop("is_nonfinite") * self._own.num_updates
        return metrics | found | {"num_optimizer_steps": float(self._own.num_updates), "num_nonfinite": num_nonfinite}

    def _step(
        self, batch: Transitions, policy: SteeredPolicy, learning: Learning, trainer: CriticTrainer
    ) -> dict[str, Tensor]:
        """Take one step of critics, noise actor and the entropy's weight. Returns scalars to log."""
        both = policy.steer(torch.cat([batch.features, batch.next_features]))  # one pass, as a sharded module wants it
        normals = torch.randn(2 * len(batch), batch.noise.shape[1], generator=learning.random).to(learning.device)
        noise, density = both.reparameterized(normals)
        (own, following), (own_density, _) = noise.chunk(2), density.chunk(2)
        alpha = trainer.alpha
        with torch.no_grad():
            wanted = batch.rewards + batch.discounts * trainer.targets(batch.next_features, following).amin(0)
        critic_loss = (trainer.critics(batch.features, batch.noise) - wanted).square().mean(1).sum()
        trainer.step_critics(critic_loss)
        value = trainer.critics(batch.features, own).amin(0)
        is_finite = learning.step((alpha * own_density - value).mean())
        trainer.step_alpha(own_density.detach().mean(), self._own.target_entropy * batch.noise.shape[1])
        trainer.follow(self._own.tau)
        return {
            "critic_loss": critic_loss.detach() / self._own.num_critics,
            "value_mean": value.detach().mean(),
            "noise_entropy": -own_density.detach().mean() / batch.noise.shape[1],
            "alpha": alpha,
            "is_nonfinite": torch.tensor(float(not is_finite), device=learning.device),
        }

    def state_dict(self) -> Mapping[str, Tensor]:
        trainer = self._loaded if self._trainer is None else self._trainer.state_dict()
        return {f"replay.{name}": tensor for name, tensor in self._replay.state_dict().items()} | dict(trainer)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        prefix = "replay."
        kept = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        self._replay.load_state_dict(kept)
        self._trainer = None
        self._loaded = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}


def transitions(steps: ChunkSteps, tokens: Tensor, policy: SteeredPolicy) -> Transitions:
    """Return the chunk steps that terminated, or whose next one is of the same episode. tokens: [T, B, ...]."""
    features, noise = policy.steered(tokens.flatten(0, 1))
    is_kept = (steps.valid & (steps.terminated | steps.goes_on)).flatten()
    following = torch.arange(len(features)).add(tokens.shape[1]).clamp(max=len(features) - 1)[is_kept]
    discounts = torch.where(steps.terminated, 0.0, steps.discount).flatten()
    return Transitions(
        features[is_kept], noise[is_kept], steps.rewards.flatten()[is_kept], discounts[is_kept], features[following]
    )
