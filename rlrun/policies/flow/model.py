"""A flow network and its heads in one module, whose forward pass is one pass for FSDP.

Shape legend: B rows, F points of the flow, S control steps and D dimensions of the network's own chunk, T tokens of the
prefix, W their width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from rlrun.policies.flow.noise_actor import NoiseActor
from rlrun.policies.flow.noise_head import NoiseHead
from rlrun.policies.flow.settings import CriticInput, Steering, Trains
from rlrun.policies.value_head import ValueHead


@dataclass(frozen=True)
class HeadSizes:
    """What heads a policy has."""

    value: list[int]  # hidden layers of the critic; []: none
    critic_input: CriticInput
    critic_detached: bool
    noise_range: tuple[float, float] | None  # smallest and largest deviation of learned noise; None: none is learned
    steering: Steering | None  # how the first noise is chosen; None: it is drawn
    num_actions: int  # A


class Prefix(Protocol):
    """What a network computes once per observation, for all flow steps."""

    @property
    def mask(self) -> Tensor:
        """Bool [B, T], False at padding."""

    def summary(self) -> Tensor:
        """Return features of the observation, for critics: float32 [B, summary_width]."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a prefix of which every tensor is function(tensor)."""


class FlowNetwork(Protocol):
    """A flow-matching network, a torch module: a prefix of an observation, and a velocity over it."""

    summary_width: int  # of the prefix's summary
    hidden_width: int  # of the hidden of an action token

    def prefix(self, pixels: Tensor, image_masks: Tensor, tokens: Tensor, token_masks: Tensor, state: Tensor) -> Prefix:
        """Return the prefix of an observation, as `FlowProcessor` prepares it."""

    def velocity(self, x: Tensor, time: Tensor, prefix: Any) -> tuple[Tensor, Tensor]:
        """Return (velocity float32 [B, S, D], hidden of the action tokens) at x float32 [B, S, D], time float32 [B]."""

    def vision_layers(self) -> list[nn.Module]:
        """Return the layers of the vision tower, in the order of the forward pass."""

    def vlm_layers(self) -> list[nn.Module]:
        """Return the layers of the language model, in the order of the forward pass."""

    def expert_layers(self) -> list[nn.Module]:
        """Return the layers of the expert, in the order of the forward pass."""


@dataclass(frozen=True, eq=False)
class Point:
    """Where velocities are wanted, at F points of each row. Not a tuple of tensors, since FSDP would cast those to its
    precision."""

    x: Tensor  # float32 [B, F, S, D]
    time: Tensor  # float32 [B, F]


@dataclass(frozen=True, eq=False)
class Features:
    """What the noise actor reads of observations. A class of its own as `Point` is."""

    summary: Tensor  # float32 [B, W], the prefix's


@dataclass(frozen=True, eq=False)
class Answer:
    """What a pass computed."""

    prefix: Any  # None: only the noise actor ran
    values: Tensor | None  # float32 [B]; None: there is no critic
    velocity: Tensor | None = None  # float32 [B, F, S, D]; None: no point was asked for
    noise: Tensor | None = None  # float32 [B, F, S, D], deviations; None: there is no noise head
    # float32 [B, A] each: mean and log-deviation of the first noise before tanh; None: there is no noise actor
    steering: tuple[Tensor, Tensor] | None = None

    @property
    def num_rows(self) -> int:
        """Return B; a prefix was computed."""
        return len(self.prefix.mask)


torch.export.register_dataclass(Answer)  # so that FSDP finds the tensors of an output


class FlowModel(nn.Module):
    """`network` has all weights of the policy beside its heads: `value_head` is the critic's, `noise_head` that of
    learned noise, `noise_actor` that of a chosen first noise. Each may be None."""

    def __init__(self, network: FlowNetwork, heads: HeadSizes, trains: Trains):
        """trains: what it leaves out is computed without gradients."""
        super().__init__()
        assert isinstance(network, nn.Module)
        self.network: nn.Module = network
        self._heads = heads
        self.value_head, self.noise_head, self.noise_actor = self._new_heads()
        self.trains = trains

    def forward(self, observed: tuple | None, point: Point | None, features: Features | None = None) -> Answer:
        """Compute the prefix, what the heads make of it, and what is wanted at `point`.

        observed: arguments of the network's `prefix`, hidden from FSDP by the policy if they must keep their precision;
        None: only the noise actor runs, for `features`.
        """
        if observed is None:
            assert features is not None
            assert self.noise_actor is not None
            return Answer(None, None, steering=self.noise_actor(features.summary))
        network: Any = self.network
        with torch.set_grad_enabled(self.trains is Trains.everything and torch.is_grad_enabled()):
            prefix = network.prefix(*observed)
        values = None if self.value_head is None else self.value_head(self._critic_input(prefix))
        steering = None if self.noise_actor is None else self.noise_actor(prefix.summary())
        if point is None:
            return Answer(prefix, values, steering=steering)
        found = [self.at(x, time, prefix) for x, time in zip(point.x.unbind(1), point.time.unbind(1), strict=True)]
        noise = None if self.noise_head is None else torch.stack([own for _, own in found if own is not None], dim=1)
        return Answer(prefix, values, torch.stack([velocity for velocity, _ in found], dim=1), noise, steering)

    def at(self, x: Tensor, time: Tensor, prefix: Any) -> tuple[Tensor, Tensor | None]:
        """Return (velocity float32 [B, S, D], deviations float32 [B, S, D] if there is a noise head).

        x: float32 [B, S, D]; time: float32 [B].
        """
        network: Any = self.network
        velocity, hidden = network.velocity(x, time, prefix)
        return velocity, None if self.noise_head is None else self.noise_head(hidden)

    def _critic_input(self, prefix: Any) -> Tensor:
        """Return what the critic reads, [B, W]."""
        network: Any = self.network
        if self._heads.critic_input is CriticInput.prefix:
            read = prefix.summary()
        else:
            num_rows, config = len(prefix.mask), network.config
            x = torch.zeros(num_rows, config.chunk_size, config.max_action_dim, device=prefix.mask.device)
            read = network.velocity(x, torch.ones(num_rows, device=x.device), prefix)[1].float().mean(1)
        return read.detach() if self._heads.critic_detached else read

    def new_heads(self) -> dict[str, Tensor]:
        """Return newly drawn parameters of the heads by their names in this module, on the CPU."""
        with torch.device("cpu"):
            drawn = self._new_heads()
        heads = dict(zip(("value_head", "noise_head", "noise_actor"), drawn, strict=True))
        return {
            f"{part}.{name}": tensor
            for part, head in heads.items()
            if head is not None
            for name, tensor in head.state_dict().items()
        }

    def _new_heads(self) -> tuple[ValueHead | None, NoiseHead | None, NoiseActor | None]:
        network: Any = self.network
        sizes, width = self._heads, network.summary_width
        judged_width = width if sizes.critic_input is CriticInput.prefix else network.hidden_width
        value_head, noise_head, noise_actor = None, None, None
        if sizes.value:
            value_head = ValueHead(judged_width, sizes.value)
            value_head.initialize()
        if sizes.noise_range is not None:
            noise_head = NoiseHead(network.hidden_width, network.config.max_action_dim, sizes.noise_range)
            noise_head.initialize()
        if sizes.steering is not None:
            noise_actor = NoiseActor(width, sizes.steering.hidden_sizes, sizes.num_actions)
            noise_actor.initialize()
        return value_head, noise_head, noise_actor
