"""Trains the critics and the weight of the entropy; everything is equal on all ranks."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from rlrun.algorithms.algorithm import Learning
from rlrun.algorithms.dsrl.critics import Critics
from rlrun.algorithms.dsrl.settings import DsrlConfig


class CriticTrainer:
    """Every method but `state_dict` is a collective."""

    def __init__(self, own: DsrlConfig, num_features: int, num_numbers: int, learning: Learning):
        self._learning = learning
        random = torch.Generator().manual_seed(0)  # the same on all ranks
        critics = Critics(own.num_critics, num_features + num_numbers, own.hidden_sizes, random)
        self.critics = critics.to(learning.device)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(own.initial_alpha), device=learning.device))
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
        """Restore what `state_dict` returned. Ranks that have {} get what the others have; if none has, nothing
        changes."""
        learning = self._learning
        if not learning.any(bool(state)):
            return
        if learning.any(not state):
            count = learning.sum(torch.tensor([float(bool(state))]))
            own = {name: state[name] if state else torch.zeros_like(tensor) for name, tensor in self._tensors()}
            state = {name: learning.sum(tensor.cpu()) / count for name, tensor in own.items()}
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
        averaged = self._learning.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, gradient in zip(parameters, averaged.split(sizes), strict=True):
            parameter.grad = (gradient / self._learning.world_size).view_as(parameter)
        optimizer.step()
