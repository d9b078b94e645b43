"""A flow network and its heads in one module, whose forward pass is one pass for FSDP.

Shape legend: B rows, F flow times per row, S control steps and D dimensions of the network's own chunk, T tokens of the
prefix, W their width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.algorithms.losses import masked_mean
from rlrun.edges.seeds import splitmix64
from rlrun.policies import distributions
from rlrun.policies.distributions import ValueHead, linear_in_float32
from rlrun.policies.flow.spec import NOISE_SIZES, CriticInput, Steering, Trains
from rlrun.policies.flow.time import FlowTime

ACTOR_LAST_STD = 0.01  # of the last layer's weights: small, so that first the noise is standard normal before tanh
LOG_STD_RANGE = (-5.0, 1.0)
LAST_STD = 0.02  # of the last layer's weights: small, so that the noise begins in the middle of its range
SHARE_ALPHA = 1.5  # the share of noise is Beta(1.5, 1): more of it, as openpi, LeRobot and NVIDIA draw it
SHARE_RANGE = (0.001, 1.0)  # of the drawn shares


class Perceptron(nn.Module):
    """The layers, initialized by fan-in; the weights of the last one have the deviation `last_std`."""

    def __init__(self, sizes: list[int], last_std: float):
        super().__init__()
        self._last_std = last_std
        self.layers = nn.ModuleList(nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(sizes))

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw the weights."""
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            layer.weight.normal_(std=self._last_std if layer is self.layers[-1] else layer.weight.shape[1] ** -0.5)
            layer.bias.zero_()


class NoiseActor(Perceptron):
    """Summary of a prefix [B, W] -> (means [B, A], logarithms of deviations [B, A]), of numbers before tanh."""

    def __init__(self, width: int, hidden_sizes: list[int], num_numbers: int):
        super().__init__([width, *hidden_sizes, 2 * num_numbers], ACTOR_LAST_STD)

    def forward(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        """Compute in float32, whatever the precision of the weights."""
        x = summary.float()
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = linear_in_float32(x if layer is self.layers[0] else F.gelu(x), layer.weight, layer.bias)
        mean, log_std = x.chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD_RANGE)


class NoiseHead(Perceptron):
    """Hidden of action tokens [..., W] -> deviations [..., D], whose logarithms lie within those of the range."""

    def __init__(self, width: int, num_dims: int, noise_range: tuple[float, float]):
        super().__init__([width, *NOISE_SIZES, num_dims], LAST_STD)
        self._low, self._high = map(math.log, noise_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute in float32."""
        x = hidden.float()
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = F.linear(x, layer.weight.float(), layer.bias.float()).tanh()
        return (self._low + (self._high - self._low) * (x + 1.0) / 2.0).exp()


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of the heads of a policy."""

    value: list[int]  # hidden layers of the critic; []: none
    critic_input: CriticInput
    critic_detached: bool
    noise_range: tuple[float, float] | None  # smallest and largest deviation of learned noise; None: no learned noise
    steering: Steering | None  # settings of the noise actor; None: the first noise is drawn
    num_actions: int  # A


class Prefix(Protocol):
    """Cache of an observation, which a network computes once for all flow steps."""

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
    flow_time: FlowTime  # which way the time of `velocity` runs

    def prefix(self, pixels: Tensor, image_masks: Tensor, tokens: Tensor, token_masks: Tensor, state: Tensor) -> Prefix:
        """Return the prefix of an observation, as `FlowProcessor` prepares it."""

    def completed(self, prefix: Any) -> Prefix:
        """Return the prefix with what layers that train with the expert make of it, once for all flow steps."""

    def velocity(self, x: Tensor, time: Tensor, prefix: Any) -> tuple[Tensor, Tensor]:
        """Return (velocity float32 [B, S, D], hidden of the action tokens) at x float32 [B, S, D], time float32 [B]."""

    def vision_layers(self) -> list[nn.Module]:
        """Return the layers of the vision tower, in the order of the forward pass."""

    def vlm_layers(self) -> list[nn.Module]:
        """Return the layers of the language model, in the order of the forward pass."""

    def expert_layers(self) -> list[nn.Module]:
        """Return the layers of the expert, in the order of the forward pass."""


@dataclass(frozen=True, eq=False)
class FlowInput:
    """Inputs of the velocity, at F flow times per row. Not a tuple of tensors, since FSDP would cast those to its
    precision."""

    x: Tensor  # float32 [B, F, S, D]
    time: Tensor  # float32 [B, F]


@dataclass(frozen=True, eq=False)
class NoiseFeatures:
    """Features for the noise actor. A class of its own, as `FlowInput` is."""

    summary: Tensor  # float32 [B, W], the prefix's


@dataclass(frozen=True, eq=False)
class FlowOutput:
    """Outputs of one forward pass."""

    prefix: Any  # None: only the noise actor ran
    values: Tensor | None  # float32 [B]; None: there is no critic
    velocity: Tensor | None = None  # float32 [B, F, S, D]; None: without a FlowInput
    noise: Tensor | None = None  # float32 [B, F, S, D], deviations; None: there is no noise head
    # float32 [B, A] each: mean and log-deviation of the first noise before tanh; None: there is no noise actor
    noise_action: tuple[Tensor, Tensor] | None = None

    @property
    def num_rows(self) -> int:
        """Return B; a prefix was computed."""
        return len(self.prefix.mask)


torch.export.register_dataclass(FlowOutput)  # so that FSDP finds the tensors of an output


class FlowModel(nn.Module):
    """Network with its heads: `value_head` (the critic), `noise_head` (learned noise) and `noise_actor` (first noise of
    DSRL). Each head may be None."""

    def __init__(self, network: FlowNetwork, heads: HeadSizes, trains: Trains):
        """trains: parts outside of it run under no_grad."""
        super().__init__()
        assert isinstance(network, nn.Module)
        self.network: nn.Module = network
        self._heads = heads
        self.value_head, self.noise_head, self.noise_actor = self._new_heads()
        self.trains = trains

    def forward(
        self, observed: tuple | None, flow_input: FlowInput | None, features: NoiseFeatures | None = None
    ) -> FlowOutput:
        """Compute the prefix and the heads, and the velocity at `flow_input`.

        observed: arguments of the network's `prefix`, hidden from FSDP by the policy if they must keep their precision;
        None: only the noise actor runs, on `features`.
        """
        if observed is None:
            assert features is not None
            assert self.noise_actor is not None
            return FlowOutput(None, None, noise_action=self.noise_actor(features.summary))
        network: Any = self.network
        with torch.set_grad_enabled(self.trains is Trains.everything and torch.is_grad_enabled()):
            prefix = network.prefix(*observed)
        prefix = network.completed(prefix)
        values = None if self.value_head is None else self.value_head(self._critic_input(prefix))
        noise_action = None if self.noise_actor is None else self.noise_actor(prefix.summary())
        if flow_input is None:
            return FlowOutput(prefix, values, noise_action=noise_action)
        results = [
            self.at(x, time, prefix) for x, time in zip(flow_input.x.unbind(1), flow_input.time.unbind(1), strict=True)
        ]
        noise = (
            None
            if self.noise_head is None
            else torch.stack([noise_of_step for _, noise_of_step in results if noise_of_step is not None], dim=1)
        )
        return FlowOutput(
            prefix, values, torch.stack([velocity for velocity, _ in results], dim=1), noise, noise_action
        )

    def at(self, x: Tensor, time: Tensor, prefix: Any) -> tuple[Tensor, Tensor | None]:
        """Return (velocity float32 [B, S, D], deviations float32 [B, S, D] if there is a noise head).

        x: float32 [B, S, D]; time: float32 [B].
        """
        network: Any = self.network
        velocity, hidden = network.velocity(x, time, prefix)
        return velocity, None if self.noise_head is None else self.noise_head(hidden)

    def _critic_input(self, prefix: Any) -> Tensor:
        """Return the input of the critic, [B, W]."""
        network: Any = self.network
        if self._heads.critic_input is CriticInput.prefix:
            read = prefix.summary()
        else:
            num_rows = len(prefix.mask)
            config = network.config
            x = torch.zeros(num_rows, config.horizon, config.max_action_dim, device=prefix.mask.device)
            noise = torch.full((num_rows,), network.flow_time.noise, device=x.device)
            read = network.velocity(x, noise, prefix)[1].float().mean(1)
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
        sizes = self._heads
        width = network.summary_width
        critic_width = width if sizes.critic_input is CriticInput.prefix else network.hidden_width
        value_head = None
        noise_head = None
        noise_actor = None
        if sizes.value:
            value_head = ValueHead(critic_width, sizes.value)
            value_head.initialize()
        if sizes.noise_range is not None:
            noise_head = NoiseHead(network.hidden_width, network.config.max_action_dim, sizes.noise_range)
            noise_head.initialize()
        if sizes.steering is not None:
            noise_actor = NoiseActor(width, sizes.steering.hidden_sizes, sizes.num_actions)
            noise_actor.initialize()
        return value_head, noise_head, noise_actor


def drawn_shares(normal: Tensor) -> Tensor:
    """Return shares of noise, of the same shape, for standard normal numbers."""
    low, high = SHARE_RANGE
    return low + (high - low) * torch.special.ndtr(normal).pow(1.0 / SHARE_ALPHA)


@dataclass(frozen=True, eq=False)
class Matching:
    """Batch of conditional flow matching: inputs of the velocity, and its targets."""

    flow_input: FlowInput
    target: Tensor  # float32 [B, S, D]

    @classmethod
    def sample(cls, actions: Tensor, count: int, flow_time: FlowTime) -> Matching:
        """Sample a time and noise for each row. actions: normalised, float32 [B, S, D].

        count: of losses before this one. The same count gives the same draws, so that a resumed run repeats itself.
        """
        num_rows = len(actions)
        num_numbers = actions[0].numel()
        keys = splitmix64((np.uint64(count) << np.uint64(32)) + np.arange(num_rows, dtype=np.uint64))
        numbers = distributions.normals(keys, num_numbers + 1).float()
        noise = numbers[:, 1:].view(actions.shape).to(actions)
        share = drawn_shares(numbers[:, 0]).to(actions)
        at = share[:, None, None]
        x = at * noise + (1.0 - at) * actions
        time = flow_time.of_share(share)
        return cls(FlowInput(x[:, None], time[:, None]), flow_time.velocity(noise, actions))

    def loss(self, velocity: Tensor, step_valid: Tensor, num_actions: int) -> Tensor:
        """Return the mean square over real dimensions of valid control steps; 0 if none is valid.

        velocity: float32 [B, S, D]; step_valid: bool [B, C].
        """
        errors = (velocity - self.target)[:, : step_valid.shape[1], :num_actions].square().mean(-1)
        return masked_mean(errors, step_valid)
