"""Flow-Noise: a flow sampler in which every Euler step is random, with a learned deviation.

Sources: pi-RL (arXiv 2510.25889), ReinFlow (2505.22094).

The mean of a step is that of the ODE; its deviation is given by a head on the hidden of the action tokens, so that the
entropy can be trained. The log-probability of a number is the sum over the steps, the likelihood of its chain; pi-RL
takes the mean instead. As in Flow-SDE only executed real numbers get noise. The first noise is standard normal
whatever the weights, so that it cancels in ratios.

Shape legend: B rows, F flow steps, S control steps and D dimensions of the network's own chunk, K executed numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.policies import distributions
from rlrun.policies.flow.method import ChunkShape, FlowChain, FlowMethod, VelocityFn, normal_logprobs
from rlrun.policies.flow.model import FlowInput, FlowOutput
from rlrun.policies.flow.spec import FirstNoise
from rlrun.policies.flow.time import NOISE_AT_ONE, FlowTime

ENTROPY = 0.5 * math.log(2 * math.pi * math.e)  # of a standard normal number


@dataclass(frozen=True)
class FlowNoise(FlowMethod):
    """Flow-Noise: every step is random."""

    num_steps: int
    first_noise: FirstNoise = FirstNoise.drawn
    flow_time: FlowTime = NOISE_AT_ONE

    @property
    def times(self) -> tuple[float, ...]:
        """Time before each step."""
        return tuple(self.flow_time.after(k, self.num_steps) for k in range(self.num_steps))

    def euler(self, x: Tensor, velocity: Tensor) -> Tensor:
        """Return x after a step without noise; all [...]."""
        return self.flow_time.to_action(x, velocity, 1.0 / self.num_steps)

    def sampler(
        self, shape: ChunkShape, output: FlowOutput, velocity_fn: VelocityFn, temperature: float
    ) -> ActionDistribution:
        return ChainSampler(self, shape, velocity_fn, output.num_rows, temperature)

    def flow_input(self, shape: ChunkShape, tokens: Tensor) -> FlowInput:
        chain = FlowChain.from_tokens(tokens, self.num_steps, shape.num_steps, shape.num_dims)
        return FlowInput(chain.before, torch.tensor(self.times, device=tokens.device).expand(len(tokens), -1))

    def evaluate(self, shape: ChunkShape, tokens: Tensor, output: FlowOutput, temperature: float) -> Chain:
        assert output.velocity is not None
        assert output.noise is not None
        chain = FlowChain.from_tokens(tokens, self.num_steps, shape.num_steps, shape.num_dims)
        mean = shape.executed(self.euler(chain.before, output.velocity))
        return Chain(self, shape, mean, shape.executed(output.noise) * temperature)


class Chain(ActionDistribution):
    """Log-probabilities of whole denoising chains, whose means and deviations were computed in the forward pass."""

    def __init__(self, method: FlowNoise, shape: ChunkShape, mean: Tensor, std: Tensor):
        self._method = method
        self._shape = shape
        # float32 [B, F, K]
        self.mean = mean
        self.std = std

    def sample(self, keys: np.ndarray) -> Tensor:
        raise TypeError("this distribution evaluates given tokens; call the policy without tokens to sample")

    def most_likely(self) -> Tensor:
        raise TypeError("this distribution evaluates given tokens; call the policy without tokens to sample")

    def logprobs(self, tokens: Tensor) -> Tensor:
        shape = self._shape
        chain = FlowChain.from_tokens(tokens, self._method.num_steps, shape.num_steps, shape.num_dims)
        after = torch.cat([shape.executed(chain.before)[:, 1:], chain.action[:, None]], dim=1)
        return normal_logprobs(after, self.mean, self.std).sum(1)

    def entropy(self) -> Tensor:
        return (ENTROPY + self.std.log()).sum(1)

    def slice_rows(self, num_rows: int) -> Chain:
        return Chain(self._method, self._shape, self.mean[:num_rows], self.std[:num_rows])


class ChainSampler(ActionDistribution):
    """Samples chunks by F random steps over a prefix."""

    def __init__(
        self, method: FlowNoise, shape: ChunkShape, velocity_fn: VelocityFn, num_rows: int, temperature: float
    ):
        """temperature: a factor of all noise."""
        self._method = method
        self._shape = shape
        self._velocity_fn = velocity_fn
        self._num_rows = num_rows
        self._temperature = temperature
        self._drawn: tuple[Tensor, Chain] | None = None  # tokens of the last sample, and their distribution

    def sample(self, keys: np.ndarray) -> Tensor:
        """Return float32 [B, F*S*D + K]; row b depends on `keys[b]` and its own observation."""
        shape = self._shape
        num_steps = self._method.num_steps
        num_noise = shape.num_steps * shape.num_dims
        executed = shape.num_executed * shape.num_actions
        numbers = self._temperature * distributions.normals(keys, num_noise + num_steps * executed).float()
        start = shape.first_noise(self._method.first_noise, numbers[:, :num_noise])
        return self._flow(start, numbers[:, num_noise:].unflatten(1, (num_steps, executed)))

    def most_likely(self) -> Tensor:
        """Return float32 [B, F*S*D + K]: the ODE from one fixed noise."""
        executed = self._shape.num_executed * self._shape.num_actions
        noise = torch.zeros(self._num_rows, self._method.num_steps, executed)
        return self._flow(self._shape.fixed_noise(self._num_rows), noise)

    def logprobs(self, tokens: Tensor) -> Tensor:
        if self._drawn is not None and self._drawn[0] is tokens:
            return self._drawn[1].logprobs(tokens)
        inputs = self._method.flow_input(self._shape, tokens)
        results = [self._at(x, time) for x, time in zip(inputs.x.unbind(1), inputs.time.unbind(1), strict=True)]
        velocity, noise = (torch.stack(parts, dim=1) for parts in zip(*results, strict=True))
        output = FlowOutput(None, None, velocity, noise)
        return self._method.evaluate(self._shape, tokens, output, self._temperature).logprobs(tokens)

    def entropy(self) -> Tensor:
        """Return float32 [B, K]: of the last sampled chains; before sampling, of the most likely ones."""
        if self._drawn is None:
            self.most_likely()
        assert self._drawn is not None
        return self._drawn[1].entropy()

    def slice_rows(self, num_rows: int) -> ChainSampler:
        return ChainSampler(self._method, self._shape, self._velocity_fn, num_rows, self._temperature)

    def _flow(self, x: Tensor, noise: Tensor) -> Tensor:
        """Run all steps from x [B, S, D]. noise: standard normal or zero, [B, F, K], times the temperature."""
        shape = self._shape
        before = []
        means = []
        stds = []
        for k, time in enumerate(self._method.times):
            velocity, std = self._at(x, torch.full((self._num_rows,), time))
            x = x.to(velocity.device)
            noise = noise.to(velocity.device)
            following = self._method.euler(x, velocity)
            before.append(x)
            means.append(shape.executed(following))
            stds.append(shape.executed(std))
            x = shape.replaced(following, means[-1] + stds[-1] * noise[:, k])
        tokens = FlowChain(torch.stack(before, dim=1), shape.executed(x)).to_tokens()
        mean = torch.stack(means, dim=1)
        std = torch.stack(stds, dim=1)
        self._drawn = tokens, Chain(self._method, shape, mean, std * self._temperature)
        return tokens

    def _at(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        velocity, noise = self._velocity_fn(x, time, self._num_rows)
        assert noise is not None
        return velocity, noise
