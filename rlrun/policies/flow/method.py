"""The interface of Flow-SDE, Flow-Noise and DSRL: sampling actions and their log-probabilities; and Flow-SDE itself.

Shape legend: B rows, F flow times per row, S control steps and D dimensions of the network's own chunk.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.policies import distributions
from rlrun.policies.flow.model import FlowInput, FlowOutput
from rlrun.policies.flow.spec import FirstNoise
from rlrun.policies.flow.time import NOISE_AT_ONE, FlowTime

# (x [B, S, D], time [B], number of first rows B) -> (velocity, standard deviation of learned noise or None)
VelocityFn = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class ChunkShape:
    """Shape of the network's own chunk, and of its executed part: K = C*A numbers."""

    num_steps: int  # S
    num_dims: int  # D
    num_executed: int  # C
    num_actions: int  # A

    def executed(self, x: Tensor) -> Tensor:
        """Return [..., K] of [..., S, D]."""
        return x[..., : self.num_executed, : self.num_actions].flatten(-2)

    def first_noise(self, kind: FirstNoise, drawn: Tensor) -> Tensor:
        """Return the initial noise of the flow, float32 [B, S, D]. drawn: normal numbers, float32 [B, S*D]."""
        if kind is FirstNoise.fixed:
            return self.fixed_noise(len(drawn))
        return drawn.unflatten(1, (self.num_steps, self.num_dims))

    def fixed_noise(self, num_rows: int) -> Tensor:
        """Return the same standard normal numbers for every row, float32 [B, S, D]: a first noise to act without
        randomness. Zero would not do: the mean of the noise is far from any that a network has seen."""
        numbers = distributions.normals(np.zeros(1, np.uint64), self.num_steps * self.num_dims).float()
        return numbers.view(1, self.num_steps, self.num_dims).repeat(num_rows, 1, 1)

    def replaced(self, x: Tensor, executed: Tensor) -> Tensor:
        """Return x [B, S, D] with its executed part replaced by [B, K]."""
        changed = x.clone()
        changed[:, : self.num_executed, : self.num_actions] = executed.unflatten(1, (-1, self.num_actions))
        return changed


class FlowMethod(ABC):
    """Stochastic policy on top of a velocity network."""

    @abstractmethod
    def sampler(
        self, shape: ChunkShape, output: FlowOutput, velocity_fn: VelocityFn, temperature: float
    ) -> ActionDistribution:
        """Return the distribution to sample from, for the rows of `output`. temperature: a factor of all noise."""

    @abstractmethod
    def flow_input(self, shape: ChunkShape, tokens: Tensor) -> FlowInput | None:
        """Return the inputs of the velocity for the log-probabilities of `tokens`; None: it is not needed."""

    @abstractmethod
    def evaluate(self, shape: ChunkShape, tokens: Tensor, output: FlowOutput, temperature: float) -> ActionDistribution:
        """Return the distribution that gives the log-probabilities of `tokens`. output: of the pass at `flow_input`."""


@dataclass(frozen=True)
class FlowSde:
    """Schedule of the Euler-Maruyama steps. Example: FlowSde(4, 0.5) has the times 1, 0.75, 0.5 and 0.25."""

    num_steps: int  # K
    noise_level: float  # a
    flow_time: FlowTime = NOISE_AT_ONE

    @property
    def size(self) -> float:
        """Size d of a step."""
        return 1.0 / self.num_steps

    @cached_property
    def times(self) -> tuple[float, ...]:
        """Time before each of the K steps."""
        return tuple(self.flow_time.after(k, self.num_steps) for k in range(self.num_steps))

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Share of noise before each of the K steps."""
        return tuple(1.0 - k / self.num_steps for k in range(self.num_steps))

    @cached_property
    def stds(self) -> tuple[float, ...]:
        """Deviation that the random step adds, if it is step k."""
        second = 1.0 - self.size  # stands for the first share of noise, 1, in the denominator
        rates = (share / (1.0 - min(share, second)) for share in self.shares)
        return tuple(self.noise_level * (rate * self.size) ** 0.5 for rate in rates)

    def time_of(self, step: Tensor) -> Tensor:
        """Return the time before step k: float32 [B] of int64 [B]."""
        return _taken(self.times, step)

    def std_of(self, step: Tensor) -> Tensor:
        """Return the deviation of step k as the random one: float32 [B] of int64 [B]."""
        return _taken(self.stds, step)

    def euler(self, x: Tensor, velocity: Tensor) -> Tensor:
        """Return x after one deterministic step; all [...]."""
        return self.flow_time.to_action(x, velocity, self.size)

    def mean(self, x: Tensor, velocity: Tensor, step: Tensor) -> Tensor:
        """Return the mean after a random step: x, velocity [B, ...], step int64 [B]."""
        shape = (-1, *(1,) * (x.ndim - 1))
        share = _taken(self.shares, step).view(shape)
        std = self.std_of(step).view(shape)
        noise = self.flow_time.to_noise(x, velocity, 1.0 - share)
        return self.euler(x, velocity) - std.square() / (2.0 * share) * noise


def _taken(values: tuple[float, ...], step: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=step.device)[step]


@dataclass(frozen=True, eq=False)
class FlowChoice:
    """Data stored per chunk by Flow-SDE: the random step, x before and after it, its mean, and the action."""

    step: Tensor  # int64 [B]
    before: Tensor  # float32 [B, S, D]
    after: Tensor  # float32 [B, K], the executed control steps and real dimensions
    mean: Tensor  # float32 [B, K], of `after` under the policy that acted: for the KL from it
    action: Tensor  # float32 [B, K], normalised

    def to_tokens(self) -> Tensor:
        """Return the tokens, float32 [B, 1 + S*D + 3K]."""
        return torch.cat([self.step[:, None].float(), self.before.flatten(1), self.after, self.mean, self.action], 1)

    @classmethod
    def from_tokens(cls, tokens: Tensor, num_steps: int, num_dims: int) -> FlowChoice:
        """Unpack tokens of a network with S = num_steps and D = num_dims."""
        num_noise = num_steps * num_dims
        num_executed = (tokens.shape[1] - 1 - num_noise) // 3
        step, before, *executed = tokens.float().split([1, num_noise, *[num_executed] * 3], dim=1)
        return cls(step[:, 0].round().long(), before.unflatten(1, (num_steps, num_dims)), *executed)


@dataclass(frozen=True, eq=False)
class FlowChain:
    """Data stored per chunk by Flow-Noise: the denoising states and the action."""

    before: Tensor  # float32 [B, F, S, D]
    action: Tensor  # float32 [B, K], normalized

    def to_tokens(self) -> Tensor:
        """Return the tokens, float32 [B, F*S*D + K]."""
        return torch.cat([self.before.flatten(1), self.action], dim=1)

    @classmethod
    def from_tokens(cls, tokens: Tensor, num_flow_steps: int, num_steps: int, num_dims: int) -> FlowChain:
        """Unpack tokens of F = num_flow_steps, S = num_steps and D = num_dims."""
        num_noise = num_flow_steps * num_steps * num_dims
        before = tokens[:, :num_noise].float()
        action = tokens[:, num_noise:].float()
        return cls(before.unflatten(1, (num_flow_steps, num_steps, num_dims)), action)


class FlowStep(ActionDistribution):
    """Log-probabilities of one Gaussian denoising step, whose velocity was computed in the forward pass."""

    def __init__(self, shape: ChunkShape, mean: Tensor, std: Tensor):
        self._shape = shape
        self.mean = mean  # float32 [B, K]
        self.std = std  # float32 [B, 1]

    @classmethod
    def from_velocity(
        cls, sde: FlowSde, shape: ChunkShape, choice: FlowChoice, velocity: Tensor, temperature: float = 1.0
    ) -> FlowStep:
        """Return the step. velocity: float32 [B, S, D], at `choice.before`; temperature: of the noise."""
        mean = shape.executed(sde.mean(choice.before, velocity, choice.step))
        return cls(shape, mean, (sde.std_of(choice.step) * temperature)[:, None])

    def sample(self, keys: np.ndarray) -> Tensor:
        raise TypeError("this distribution evaluates given tokens; call the policy without tokens to sample")

    def most_likely(self) -> Tensor:
        raise TypeError("this distribution evaluates given tokens; call the policy without tokens to sample")

    def logprobs(self, tokens: Tensor) -> Tensor:
        """Return float32 [B, K]. tokens: those that the forward pass was given."""
        after = FlowChoice.from_tokens(tokens, self._shape.num_steps, self._shape.num_dims).after
        return normal_logprobs(after, self.mean, self.std)

    def kl_statistic(self, tokens: Tensor) -> Tensor:
        """Return the means, float32 [B, K]: deviations depend on the step only, which the tokens name."""
        return self.mean

    def exact_kl(self, reference: Tensor) -> Tensor:
        """Return float32 [B, K]. Both normal distributions have the same deviation."""
        return 0.5 * ((self.mean - reference) / self.std).square()

    def kl_from_behavior(self, tokens: Tensor) -> Tensor:
        """Return float32 [B, K]."""
        return self.exact_kl(FlowChoice.from_tokens(tokens, self._shape.num_steps, self._shape.num_dims).mean)

    def entropy(self) -> Tensor:
        return (0.5 * math.log(2 * math.pi * math.e) + self.std.log()).expand(self.mean.shape)

    def slice_rows(self, num_rows: int) -> FlowStep:
        return FlowStep(self._shape, self.mean[:num_rows], self.std[:num_rows])


class FlowSampler(ActionDistribution):
    """Samples chunks by K flow steps over a prefix. Each row's key draws which step is random, and the noise."""

    def __init__(
        self,
        sde: FlowSde,
        shape: ChunkShape,
        velocity_fn: VelocityFn,
        num_rows: int,
        temperature: float,
        first_noise: FirstNoise = FirstNoise.drawn,
    ):
        """temperature: a factor of all noise that is drawn."""
        self._sde = sde
        self._shape = shape
        self._velocity_fn = velocity_fn
        self._first_noise = first_noise
        self._num_rows = num_rows
        self._temperature = temperature
        self._drawn: tuple[Tensor, FlowStep] | None = None  # tokens of the last sample, and their distribution

    def sample(self, keys: np.ndarray) -> Tensor:
        """Return float32 [B, W]; row b depends on `keys[b]` and its own observation."""
        shape = self._shape
        num_noise = shape.num_steps * shape.num_dims
        numbers = distributions.normals(keys, num_noise + shape.num_executed * shape.num_actions + 1)
        step = (torch.special.ndtr(numbers[:, -1]) * self._sde.num_steps).long().clamp(max=self._sde.num_steps - 1)
        noise = self._temperature * numbers[:, :-1].float()
        return self._flow(shape.first_noise(self._first_noise, noise[:, :num_noise]), noise[:, num_noise:], step)

    def most_likely(self) -> Tensor:
        """Return float32 [B, W]: the ODE from one fixed noise."""
        shape = self._shape
        noise = torch.zeros(self._num_rows, shape.num_executed * shape.num_actions)
        return self._flow(shape.fixed_noise(self._num_rows), noise, None)

    def logprobs(self, tokens: Tensor) -> Tensor:
        return self._step_of(tokens).logprobs(tokens)

    def entropy(self) -> Tensor:
        """Return float32 [B, K]: of the last sampled step; before sampling, the mean over all steps."""
        if self._drawn is not None:
            return self._drawn[1].entropy()
        mean = sum(map(math.log, self._sde.stds)) / self._sde.num_steps + math.log(self._temperature)
        size = (self._num_rows, self._shape.num_executed * self._shape.num_actions)
        return torch.full(size, 0.5 * math.log(2 * math.pi * math.e) + mean)

    def slice_rows(self, num_rows: int) -> FlowSampler:
        return FlowSampler(self._sde, self._shape, self._velocity_fn, num_rows, self._temperature, self._first_noise)

    def _flow(self, x: Tensor, noise: Tensor, random_step: Tensor | None) -> Tensor:
        """Run all steps from x [B, S, D]. noise: [B, K], of the random step; None: no step is random, and the first
        one is stored."""
        sde = self._sde
        shape = self._shape
        time = torch.full((self._num_rows,), sde.times[0])
        probe, _ = self._velocity_fn(x, time, self._num_rows)
        x = x.to(probe.device)
        noise = noise.to(probe.device)
        chosen = torch.zeros(self._num_rows, dtype=torch.int64) if random_step is None else random_step
        chosen = chosen.to(probe.device)
        before = x
        at_choice = probe
        after = torch.zeros_like(noise)
        chosen_mean = torch.zeros_like(noise)
        for k in range(sde.num_steps):
            velocity = probe
            if k > 0:
                velocity, _ = self._velocity_fn(x, torch.full_like(time, sde.times[k]), self._num_rows)
            following = sde.euler(x, velocity)
            is_random = chosen == k
            mean = shape.executed(sde.mean(x, velocity, torch.full_like(chosen, k)))
            drawn = mean + sde.stds[k] * noise
            before = torch.where(is_random[:, None, None], x, before)
            at_choice = torch.where(is_random[:, None, None], velocity, at_choice)
            after = torch.where(is_random[:, None], drawn, after)
            chosen_mean = torch.where(is_random[:, None], mean, chosen_mean)
            if random_step is not None:
                stochastic = shape.replaced(following, drawn)
                following = torch.where(is_random[:, None, None], stochastic, following)
            x = following
        choice = FlowChoice(chosen, before, after, chosen_mean, shape.executed(x))
        tokens = choice.to_tokens()
        self._drawn = tokens, FlowStep.from_velocity(sde, shape, choice, at_choice, self._temperature)
        return tokens

    def _step_of(self, tokens: Tensor) -> FlowStep:
        if self._drawn is not None and self._drawn[0] is tokens:
            return self._drawn[1]
        choice = FlowChoice.from_tokens(tokens, self._shape.num_steps, self._shape.num_dims)
        velocity, _ = self._velocity_fn(choice.before, self._sde.time_of(choice.step), self._num_rows)
        return FlowStep.from_velocity(self._sde, self._shape, choice, velocity, self._temperature)


@dataclass(frozen=True)
class FlowSdeMethod(FlowMethod):
    """Flow-SDE: one random step per chunk."""

    sde: FlowSde
    first_noise: FirstNoise = FirstNoise.drawn

    def sampler(
        self, shape: ChunkShape, output: FlowOutput, velocity_fn: VelocityFn, temperature: float
    ) -> ActionDistribution:
        return FlowSampler(self.sde, shape, velocity_fn, output.num_rows, temperature, self.first_noise)

    def flow_input(self, shape: ChunkShape, tokens: Tensor) -> FlowInput:
        choice = FlowChoice.from_tokens(tokens, shape.num_steps, shape.num_dims)
        return FlowInput(choice.before[:, None], self.sde.time_of(choice.step)[:, None])

    def evaluate(self, shape: ChunkShape, tokens: Tensor, output: FlowOutput, temperature: float) -> ActionDistribution:
        assert output.velocity is not None
        choice = FlowChoice.from_tokens(tokens, shape.num_steps, shape.num_dims)
        return FlowStep.from_velocity(self.sde, shape, choice, output.velocity[:, 0], temperature)


def normal_logprobs(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the log-density of each number, float32, of x; std of a shape that broadcasts."""
    return -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
