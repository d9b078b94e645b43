"""DSRL: the flow runs as an ODE, and a learned noise actor gives its first noise.

Source: "Steering your diffusion policy with latent space reinforcement learning" (arXiv 2506.15799). The network stays
as it is. One noise, a number per real action dimension, serves all control steps of a chunk; padded dimensions begin at
zero. The actor gives a normal distribution, whose numbers u become the noise bound * tanh(u).

The tokens of an action contain its features, the summary of the prefix that noise actor and critics read: a replay
buffer needs no pictures, and learning never runs the network.

Shape legend: B rows, W width of a summary, A real action dimensions, C executed control steps, K = C*A.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.policies import distributions
from rlrun.policies.flow.method import ChunkShape, FlowMethod, FlowSde, VelocityFn
from rlrun.policies.flow.model import FlowInput, FlowOutput
from rlrun.policies.flow.time import NOISE_AT_ONE, FlowTime


@dataclass(frozen=True, eq=False)
class NoiseAction:
    """Transition (features, noise, action)."""

    summary: Tensor  # float32 [B, W], the features
    raw: Tensor  # float32 [B, A], the noise before tanh
    action: Tensor  # float32 [B, K], normalized

    def to_tokens(self) -> Tensor:
        """Return the tokens, float32 [B, W + A + K]."""
        return torch.cat([self.summary, self.raw, self.action], dim=1)

    @classmethod
    def from_tokens(cls, tokens: Tensor, shape: ChunkShape) -> NoiseAction:
        """Unpack tokens."""
        num_executed = shape.num_executed * shape.num_actions
        sizes = [tokens.shape[1] - shape.num_actions - num_executed, shape.num_actions, num_executed]
        return cls(*tokens.float().split(sizes, dim=1))


class NoiseDistribution(ActionDistribution):
    """Distribution of the first noise. A number's log-probability, in units of the bound, is shared by the control
    steps that it serves."""

    def __init__(self, shape: ChunkShape, mean: Tensor, log_std: Tensor, temperature: float, act: Act | None = None):
        """mean, log_std: float32 [B, A], before tanh. temperature: a factor of the deviation. act: runs the flow; None:
        the distribution only evaluates tokens."""
        self._shape = shape
        self._act = act
        self.mean = mean
        self.log_std = log_std + math.log(temperature)

    def sample(self, keys: np.ndarray) -> Tensor:
        """Return float32 [B, W + A + K]; row b depends on `keys[b]` and its own observation."""
        numbers = distributions.normals(keys, self._shape.num_actions).to(self.mean)
        return self._acted(self.mean + self.log_std.exp() * numbers)

    def most_likely(self) -> Tensor:
        """Return float32 [B, W + A + K]: of the mean before tanh."""
        return self._acted(self.mean)

    def reparameterized(self, normals: Tensor) -> tuple[Tensor, Tensor]:
        """Return (noise over its bound [B, A], its log-density [B]), differentiable. normals: float32 [B, A]."""
        raw = self.mean + self.log_std.exp() * normals
        return raw.tanh(), distributions.squashed_logprobs(raw, self.mean, self.log_std).sum(1)

    def logprobs(self, tokens: Tensor) -> Tensor:
        raw = NoiseAction.from_tokens(tokens, self._shape).raw
        return self._shared(distributions.squashed_logprobs(raw, self.mean, self.log_std))

    def entropy(self) -> Tensor:
        """Return float32 [B, K], by quadrature."""
        return self._shared(distributions.squashed_entropy(self.mean, self.log_std))

    def slice_rows(self, num_rows: int) -> NoiseDistribution:
        return NoiseDistribution(self._shape, self.mean[:num_rows], self.log_std[:num_rows], 1.0, self._act)

    def _shared(self, numbers: Tensor) -> Tensor:
        """Return [B, K] of [B, A]: each control step has an equal share, so that a chunk's sum is right."""
        return (numbers / self._shape.num_executed).repeat(1, self._shape.num_executed)

    def _acted(self, raw: Tensor) -> Tensor:
        if self._act is None:
            raise TypeError("this distribution evaluates given tokens; call the policy without tokens to sample")
        return self._act(raw).to_tokens()


Act = Callable[[Tensor], NoiseAction]  # runs the flow from raw numbers [B, A], of the first B rows


@dataclass(frozen=True)
class Dsrl(FlowMethod):
    """DSRL: a noise actor gives the first noise, and no step is random."""

    num_steps: int
    bound: float
    flow_time: FlowTime = NOISE_AT_ONE

    def sampler(
        self, shape: ChunkShape, output: FlowOutput, velocity_fn: VelocityFn, temperature: float
    ) -> ActionDistribution:
        summary = output.prefix.summary()

        def act(raw: Tensor) -> NoiseAction:
            ode = FlowSde(self.num_steps, 1.0, self.flow_time)
            num_rows = len(raw)
            x = raw.new_zeros(num_rows, shape.num_steps, shape.num_dims)
            x[..., : shape.num_actions] = self.bound * raw.tanh()[:, None]
            for time in ode.times:
                velocity, _ = velocity_fn(x, torch.full((num_rows,), time), num_rows)
                x = ode.euler(x, velocity)
            return NoiseAction(summary[:num_rows], raw, shape.executed(x))

        assert output.noise_action is not None
        return NoiseDistribution(shape, *output.noise_action, temperature, act)

    def flow_input(self, shape: ChunkShape, tokens: Tensor) -> FlowInput | None:
        return None

    def evaluate(self, shape: ChunkShape, tokens: Tensor, output: FlowOutput, temperature: float) -> NoiseDistribution:
        assert output.noise_action is not None
        return NoiseDistribution(shape, *output.noise_action, temperature)
