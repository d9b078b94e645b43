"""The common part of soft actor-critics (Haarnoja et al., 2018): critics, the entropy's weight, and their updates.

`dsrl`, `sac` and `rlpd` say what is kept in the replay buffer and what a step learns.

Shape legend: M transitions, W features of an observation, A numbers of a choice, N critics.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.algorithms.algorithm import ChunkSteps, OffPolicyAlgorithm, UpdateContext
from rlrun.algorithms.off_policy_spec import CriticActivation, SoftSection
from rlrun.algorithms.replay_buffer import ReplayBuffer, Transitions
from rlrun.config.schema import AlgorithmConfig
from rlrun.edges.trajectories import Trajectory
from rlrun.system.errors import ExitStatus, RunError

FIRST_STD = 0.02  # of the last layer's weights: small, so that the first values are near zero
ACTIVATIONS: dict[CriticActivation, Callable[[Tensor], Tensor]] = {
    CriticActivation.gelu: F.gelu,
    CriticActivation.relu: F.relu,
}


class Choice(Protocol):
    """A distribution of choices between -1 and 1."""

    def reparameterized(self, normals: Tensor) -> tuple[Tensor, Tensor]:
        """Return (choices over their bounds [M, A], their log-densities [M]). normals: float32 [M, A]."""


class Critics(nn.Module):
    """N perceptrons that share nothing: features [M, W], choices [M, A] -> values [N, M]."""

    def __init__(self, settings: SoftSection, num_inputs: int, random: torch.Generator):
        super().__init__()
        self._has_layer_norm = settings.has_layer_norm
        self._activation = ACTIVATIONS[settings.activation]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in pairwise([num_inputs, *settings.hidden_sizes, 1]):
            std = FIRST_STD if fan_out == 1 else fan_in**-0.5
            self.weights.append(std * torch.randn(settings.num_critics, fan_in, fan_out, generator=random))
            self.biases.append(torch.zeros(settings.num_critics, 1, fan_out))

    def forward(self, features: Tensor, actions: Tensor, is_frozen: bool = False) -> Tensor:
        """is_frozen: gradients reach the choices only, not the weights."""
        weights, biases = ([x.detach() if is_frozen else x for x in held] for held in (self.weights, self.biases))
        x = torch.cat([features, actions], dim=1).expand(len(weights[0]), -1, -1)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            x = torch.baddbmm(bias, x, weight)
            x = self._activation(F.layer_norm(x, weight.shape[-1:]) if self._has_layer_norm else x)
        return torch.baddbmm(biases[-1], x, weights[-1]).squeeze(-1)


class CriticTrainer:
    """Critics, their targets and the entropy's weight, alike on all ranks. Every method but `state_dict` is a
    collective."""

    def __init__(self, settings: SoftSection, num_features: int, num_numbers: int, context: UpdateContext):
        self._context = context
        random = torch.Generator().manual_seed(0)  # the same on all ranks
        self.critics = Critics(settings, num_features + num_numbers, random).to(context.device)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(settings.initial_alpha), device=context.device))
        self.num_collected = torch.zeros((), dtype=torch.float64)  # transitions of all ranks
        self._critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=settings.critic_lr, fused=True)
        self._alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=settings.alpha_lr)

    @property
    def alpha(self) -> Tensor:
        """Return the entropy's weight, without gradient."""
        return self.log_alpha.detach().exp()

    def step_critics(self, loss: Tensor) -> None:
        """Take a step of the critics."""
        self._take_step(loss, self._critic_optimizer, list(self.critics.parameters()))

    def step_alpha(self, loss: Tensor) -> None:
        """Take a step of `log_alpha`."""
        self._take_step(loss, self._alpha_optimizer, [self.log_alpha])

    def polyak_update(self, rate: float) -> None:
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
            tensors = {name: state[name] if state else torch.zeros_like(tensor) for name, tensor in self._tensors()}
            state = {name: context.sum(tensor.cpu()) / count for name, tensor in tensors.items()}
        own = dict(self._tensors())
        unfit = [name for name, tensor in own.items() if name not in state or state[name].numel() != tensor.numel()]
        if unfit or len(state) != len(own):
            raise RunError(
                "The checkpoint holds other critics than the configuration asks for.",
                key="checkpoint.resume",
                cause=f"{len(state)} tensors were saved, {len(own)} are needed"
                + (f"; {unfit[0]} has another size" if unfit else ""),
                remedy="Take the num_critics, hidden_sizes, has_layer_norm and algorithm with which it was saved, or "
                "start a new run from its policy (policy.path).",
                exit_status=ExitStatus.bad_input,
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name].view_as(tensor))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, critics in (("critics", self.critics), ("targets", self.targets)):
            yield from ((f"{prefix}.{name}", tensor) for name, tensor in critics.named_parameters())
        yield "log_alpha", self.log_alpha
        yield "num_collected", self.num_collected
        for prefix, optimizer in (("critic", self._critic_optimizer), ("alpha", self._alpha_optimizer)):
            for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
                moments = optimizer.state[parameter]
                if not moments:  # as Adam makes them before its first step
                    moments["step"] = torch.zeros((), device=parameter.device)  # where the fused kernel reads it
                    moments |= {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                yield from ((f"{prefix}.{number}.{key}", tensor) for key, tensor in moments.items())

    def _take_step(self, loss: Tensor, optimizer: torch.optim.Optimizer, parameters: list[Tensor]) -> None:
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, self._averaged(gradients), strict=True):
            parameter.grad = gradient.view_as(parameter)
        optimizer.step()

    def _averaged(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the means over all ranks, by one collective; those of one rank are its own."""
        if self._context.world_size == 1:
            return gradients
        total = self._context.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        return (total / self._context.world_size).split([gradient.numel() for gradient in gradients])


class SoftActorCritic(OffPolicyAlgorithm):
    """The actor is the policy's; critics, their targets and the entropy's weight are kept here."""

    def __init__(self, config: AlgorithmConfig, settings: SoftSection):
        super().__init__(config)
        self.settings = settings
        self.replay = ReplayBuffer(settings.replay_size)
        self.trainer: CriticTrainer | None = None  # their sizes are those of the first transitions
        self._loaded: Mapping[str, Tensor] = {}

    @abstractmethod
    def transitions(self, steps: ChunkSteps, trajectory: Trajectory, context: UpdateContext) -> Transitions:
        """Return the transitions that are kept of new chunk steps."""

    @abstractmethod
    def num_steps(self, num_new: float, trainer: CriticTrainer, context: UpdateContext) -> int:
        """Return the steps of the actor in this update; 0: it only collects. num_new: new transitions of all ranks."""

    @abstractmethod
    def step(self, context: UpdateContext, trainer: CriticTrainer) -> dict[str, Tensor]:
        """Take a step of critics, actor and the entropy's weight. Returns scalars to log: is_nonfinite, and others."""

    def update(self, steps: ChunkSteps, trajectory: Trajectory, context: UpdateContext) -> dict[str, float]:
        new = self.transitions(steps, trajectory, context)
        self.replay.add(new)
        counts = torch.tensor([float(steps.valid.sum()), float(len(new))], dtype=torch.float64)
        num_chunk_steps, num_new = context.sum(counts).tolist()
        trainer = self.trainer_for(new, context)
        num_steps = self.num_steps(num_new, trainer, context)
        trainer.num_collected += num_new
        metrics = {"num_chunk_steps": num_chunk_steps, "num_optimizer_steps": 0.0, "num_nonfinite": 0.0}
        if context.any(not len(self.replay)) or not num_steps:
            return metrics
        sums: dict[str, Tensor] = {}
        for _ in range(num_steps):
            for name, number in self.step(context, trainer).items():
                sums[name] = sums.get(name, 0.0) + number
        means = torch.stack(list(sums.values())).double() / num_steps
        averaged = dict(zip(sums, (context.sum(means.cpu()) / context.world_size).tolist(), strict=True))
        num_nonfinite = averaged.pop("is_nonfinite") * num_steps
        return metrics | averaged | {"num_optimizer_steps": float(num_steps), "num_nonfinite": num_nonfinite}

    def trainer_for(self, new: Transitions, context: UpdateContext) -> CriticTrainer:
        """Return the trainer; at first make it, with the state of a checkpoint."""
        if self.trainer is None:
            self.trainer = CriticTrainer(self.settings, new.features.shape[1], new.actions.shape[1], context)
            self.trainer.load_state_dict(self._loaded)
            self._loaded = {}
        return self.trainer

    def state_dict(self) -> Mapping[str, Tensor]:
        trainer = self._loaded if self.trainer is None else self.trainer.state_dict()
        return {f"replay.{name}": tensor for name, tensor in self.replay.state_dict().items()} | dict(trainer)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        prefix = "replay."
        kept = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        self.replay.load_state_dict(kept)
        self.trainer = None
        self._loaded = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}
