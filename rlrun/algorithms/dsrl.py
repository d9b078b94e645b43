"""Soft actor-critic (Haarnoja et al., 2018) over the first noise of a frozen flow policy (arXiv 2506.15799).

Shape legend: T chunk steps, B rows (envs), M transitions, W features of an observation, A numbers of the noise,
N critics.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.algorithms.algorithm import ChunkSteps, OffPolicyAlgorithm, UpdateContext
from rlrun.algorithms.spec import DsrlConfig
from rlrun.config.schema import AlgorithmConfig
from rlrun.data.messages import Trajectory

FIRST_STD = 0.02  # of the last layer's weights: small, so that the first values are near zero


class Critics(nn.Module):
    """N perceptrons with layer norms, which share nothing: features [M, W], noise [M, A] -> values [N, M]."""

    def __init__(self, num_critics: int, num_inputs: int, hidden_sizes: list[int], random: torch.Generator):
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in pairwise([num_inputs, *hidden_sizes, 1]):
            std = FIRST_STD if fan_out == 1 else fan_in**-0.5
            self.weights.append(std * torch.randn(num_critics, fan_in, fan_out, generator=random))
            self.biases.append(torch.zeros(num_critics, 1, fan_out))

    def forward(self, features: Tensor, noise: Tensor) -> Tensor:
        x = torch.cat([features, noise], dim=1).expand(len(self.weights[0]), -1, -1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = F.gelu(F.layer_norm(torch.baddbmm(bias, x, weight), weight.shape[-1:]))
        return torch.baddbmm(self.biases[-1], x, self.weights[-1]).squeeze(-1)


class CriticTrainer:
    """Every method but `state_dict` is a collective."""

    def __init__(self, own: DsrlConfig, num_features: int, num_numbers: int, context: UpdateContext):
        self._context = context
        random = torch.Generator().manual_seed(0)  # the same on all ranks
        critics = Critics(own.num_critics, num_features + num_numbers, own.hidden_sizes, random)
        self.critics = critics.to(context.device)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(own.initial_alpha), device=context.device))
        self._critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=own.critic_lr)
        self._alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=own.alpha_lr)

    @property
    def alpha(self) -> Tensor:
        """Return the entropy's weight, without gradient."""
        return self.log_alpha.detach().exp()

    def step_critics(self, loss: Tensor) -> None:
        """Take a step of the critics."""
        self._take_step(loss, self._critic_optimizer, list(self.critics.parameters()))

    def step_alpha(self, density: Tensor, target_entropy: float) -> None:
        """Raise the entropy's weight if the entropy is below its target, else lower it. density: mean log-density."""
        self._take_step(-self.log_alpha * (density + target_entropy), self._alpha_optimizer, [self.log_alpha])

    def follow(self, rate: float) -> None:
        """Move the targets towards the critics by this share."""
        with torch.no_grad():
            for target, critic in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(critic, rate)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of everything by name."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self._tensors()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state. Broadcasts it to ranks that have none, {}; without one on any rank, nothing changes."""
        context = self._context
        if not context.any(bool(state)):
            return
        if context.any(not state):
            count = context.sum(torch.tensor([float(bool(state))]))
            own = {name: state[name] if state else torch.zeros_like(tensor) for name, tensor in self._tensors()}
            state = {name: context.sum(tensor.cpu()) / count for name, tensor in own.items()}
        with torch.no_grad():
            for name, tensor in self._tensors():
                tensor.copy_(state[name].view_as(tensor))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, critics in (("critics", self.critics), ("targets", self.targets)):
            yield from ((f"{prefix}.{name}", tensor) for name, tensor in critics.named_parameters())
        yield "log_alpha", self.log_alpha
        for prefix, optimizer in (("critic", self._critic_optimizer), ("alpha", self._alpha_optimizer)):
            for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
                moments = optimizer.state[parameter]
                if not moments:  # as Adam makes them before its first step
                    moments["step"] = torch.tensor(0.0)
                    moments |= {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                yield from ((f"{prefix}.{number}.{key}", tensor) for key, tensor in moments.items())

    def _take_step(self, loss: Tensor, optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> None:
        gradients = torch.autograd.grad(loss, parameters)
        averaged = self._context.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, gradient in zip(parameters, averaged.split(sizes), strict=True):
            parameter.grad = (gradient / self._context.world_size).view_as(parameter)
        optimizer.step()


@dataclass(frozen=True, eq=False)
class Transitions:
    """Transitions for SAC."""

    features: Tensor  # float32 [M, W]
    noise: Tensor  # float32 [M, A], over its bound
    rewards: Tensor  # float32 [M]
    discounts: Tensor  # float32 [M], of what follows; 0: the episode terminated
    next_features: Tensor  # float32 [M, W]

    def __len__(self) -> int:
        return len(self.rewards)

    def to(self, device: torch.device) -> Transitions:
        """Return the same on a device."""
        return Transitions(*(getattr(self, name).to(device) for name in COLUMNS))


COLUMNS = tuple(entry.name for entry in fields(Transitions))


class ReplayBuffer:
    """At most `size` transitions. Memory for all of them is taken with the first ones."""

    def __init__(self, size: int):
        self._size = size
        self._columns: dict[str, Tensor] = {}  # each [size, ...]; {}: nothing was added
        self._num_added = 0  # row n is in place n % size

    def __len__(self) -> int:
        return min(self._num_added, self._size)

    def add(self, new: Transitions) -> None:
        """Keep copies; the oldest transitions go where there is no room."""
        places = torch.arange(self._num_added, self._num_added + len(new))[-self._size :] % self._size
        for name in COLUMNS:
            column = getattr(new, name)
            if name not in self._columns:
                self._columns[name] = column.new_empty(self._size, *column.shape[1:])
            self._columns[name][places] = column[-self._size :]
        self._num_added += len(new)

    def sample(self, count: int, random: torch.Generator) -> Transitions:
        """Return `count` transitions, drawn with replacement. There must be one."""
        return self._oldest_first(torch.randint(len(self), (count,), generator=random))

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of all transitions by column, the oldest first."""
        if not len(self):
            return {}
        kept = self._oldest_first(torch.arange(len(self)))
        return {name: getattr(kept, name) for name in COLUMNS}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned; a smaller buffer keeps the newest part."""
        self._columns, self._num_added = {}, 0
        if state:
            self.add(Transitions(*(state[name] for name in COLUMNS)))

    def _oldest_first(self, numbers: Tensor) -> Transitions:
        """Return transitions by number, 0 for the oldest."""
        places = (self._num_added - len(self) + numbers) % self._size
        return Transitions(*(self._columns[name][places] for name in COLUMNS))


class Noise(Protocol):
    """A distribution of the first noise."""

    def reparameterized(self, normals: Tensor) -> tuple[Tensor, Tensor]:
        """Return (noise over its bound [M, A], its log-density [M]). normals: float32 [M, A]."""


class SteeredPolicy(Protocol):
    """A policy whose first noise is chosen; it stores the critic features with each action."""

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

    def update(self, steps: ChunkSteps, trajectory: Trajectory, context: UpdateContext) -> dict[str, float]:
        policy: SteeredPolicy = context.policy
        new = transitions(steps, torch.tensor(trajectory.tokens), policy)
        self._replay.add(new)
        is_early = context.num_updates < self._own.warmup_steps
        metrics = {"num_chunk_steps": float(context.sum(steps.valid.sum().double().reshape(1)))}
        if context.any(is_early or not len(self._replay)):
            return metrics | {"num_optimizer_steps": 0.0, "num_nonfinite": 0.0}
        if self._trainer is None:
            self._trainer = CriticTrainer(self._own, new.features.shape[1], new.noise.shape[1], context)
            self._trainer.load_state_dict(self._loaded)
            self._loaded = {}
        count = math.ceil(self._own.batch_size / context.world_size)
        sums: dict[str, Tensor] = {}
        for _ in range(self._own.num_updates):
            batch = self._replay.sample(count, context.random).to(context.device)
            for name, number in self._step(batch, policy, context, self._trainer).items():
                sums[name] = sums.get(name, 0.0) + number
        means = torch.stack(list(sums.values())).double() / self._own.num_updates
        found = dict(zip(sums, (context.sum(means.cpu()) / context.world_size).tolist(), strict=True))
        num_nonfinite = found.pop("is_nonfinite") * self._own.num_updates
        return metrics | found | {"num_optimizer_steps": float(self._own.num_updates), "num_nonfinite": num_nonfinite}

    def _step(
        self, batch: Transitions, policy: SteeredPolicy, context: UpdateContext, trainer: CriticTrainer
    ) -> dict[str, Tensor]:
        """Take one step of critics, noise actor and the entropy's weight. Returns scalars to log."""
        both = policy.steer(torch.cat([batch.features, batch.next_features]))  # one pass, as a sharded module wants it
        normals = torch.randn(2 * len(batch), batch.noise.shape[1], generator=context.random).to(context.device)
        noise, density = both.reparameterized(normals)
        (own, following), (own_density, _) = noise.chunk(2), density.chunk(2)
        alpha = trainer.alpha
        with torch.no_grad():
            wanted = batch.rewards + batch.discounts * trainer.targets(batch.next_features, following).amin(0)
        critic_loss = (trainer.critics(batch.features, batch.noise) - wanted).square().mean(1).sum()
        trainer.step_critics(critic_loss)
        value = trainer.critics(batch.features, own).amin(0)
        is_finite = context.step((alpha * own_density - value).mean())
        trainer.step_alpha(own_density.detach().mean(), self._own.target_entropy * batch.noise.shape[1])
        trainer.follow(self._own.tau)
        return {
            "critic_loss": critic_loss.detach() / self._own.num_critics,
            "value_mean": value.detach().mean(),
            "noise_entropy": -own_density.detach().mean() / batch.noise.shape[1],
            "alpha": alpha,
            "is_nonfinite": torch.tensor(float(not is_finite), device=context.device),
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
