"""The policy's side of NFT: the flow runs as an ODE, and each chunk keeps points at which its velocity is learned.

Source: DiffusionNFT (arXiv 2509.16117); the loss is in `rlrun.algorithms.nft`. A point lies on the straight path
between the chosen chunk and fresh noise, at a time drawn as in imitation. The policy that acts computes its velocity
there, so that learning needs no second copy of the weights. Time and noise depend on the row's key alone: neither
micro-batches nor ranks change them.

Shape legend: B rows, F points, S control steps and D dimensions of the network's own chunk, C executed control steps,
A real dimensions, K = C*F*A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ActionDistribution, MatchedVelocities
from rlrun.policies import distributions
from rlrun.policies.flow.method import ChunkShape, FlowMethod, FlowSde, VelocityFn, normal_logprobs
from rlrun.policies.flow.model import FlowInput, FlowOutput, drawn_shares
from rlrun.policies.flow.time import NOISE_AT_ONE, FlowTime

ENTROPY = 0.5 * math.log(2 * math.pi * math.e)  # of a standard normal number


@dataclass(frozen=True, eq=False)
class MatchedChunk:
    """Data stored per chunk: F points of the flow, and the action."""

    points: Tensor  # float32 [B, F, S, D]
    share: Tensor  # float32 [B, F], of noise in the points
    target: Tensor  # float32 [B, F, C*A], velocity of the path between the chunk and the noise of the point
    acting: Tensor  # float32 [B, F, C*A], velocity of the policy that acted
    action: Tensor  # float32 [B, C*A], normalized

    def to_tokens(self) -> Tensor:
        """Return the tokens, float32 [B, F*(S*D + 1 + 2*C*A) + C*A]."""
        parts = (self.points, self.share, self.target, self.acting, self.action)
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    @classmethod
    def from_tokens(cls, tokens: Tensor, num_points: int, shape: ChunkShape) -> MatchedChunk:
        """Unpack tokens of F = num_points."""
        num_noise = shape.num_steps * shape.num_dims
        executed = shape.num_executed * shape.num_actions
        sizes = [num_points * num_noise, num_points, num_points * executed, num_points * executed, executed]
        points, share, target, acting, action = tokens.float().split(sizes, dim=1)
        return cls(
            points.unflatten(1, (num_points, shape.num_steps, shape.num_dims)),
            share,
            target.unflatten(1, (num_points, executed)),
            acting.unflatten(1, (num_points, executed)),
            action,
        )


class NftMatching(ActionDistribution):
    """The velocities at the points of given chunks, each the mean of a normal distribution with deviation 1.

    A choice is a number of a velocity, so that its log-probability is minus half of the flow-matching error, and a
    constant. It is no log-probability of the action, but rollout and actor can be compared by it, and the KL of two
    policies is half of their squared difference.
    """

    has_likelihood = False

    def __init__(self, shape: ChunkShape, num_points: int, velocity: Tensor):
        """velocity: float32 [B, F, C*A], at the points of the tokens that it will be asked about."""
        self._shape = shape
        self._num_points = num_points
        self.velocity = velocity

    def sample(self, keys: np.ndarray) -> Tensor:
        raise TypeError("this distribution evaluates given tokens; call the policy without tokens to sample")

    def most_likely(self) -> Tensor:
        raise TypeError("this distribution evaluates given tokens; call the policy without tokens to sample")

    def logprobs(self, tokens: Tensor) -> Tensor:
        terms = self.flow_matching_terms(tokens)
        return normal_logprobs(terms.target, terms.velocity, torch.ones_like(terms.velocity)).flatten(1)

    def entropy(self) -> Tensor:
        return torch.full_like(self.velocity, ENTROPY).flatten(1)

    def kl_statistic(self, tokens: Tensor) -> Tensor:
        """Return the velocities, float32 [B, K]."""
        return self._by_step(self.velocity).flatten(1)

    def exact_kl(self, reference: Tensor) -> Tensor:
        return 0.5 * (self._by_step(self.velocity).flatten(1) - reference).square()

    def kl_from_behavior(self, tokens: Tensor) -> Tensor:
        return self.exact_kl(self.flow_matching_terms(tokens).acting.flatten(1))

    def flow_matching_terms(self, tokens: Tensor) -> MatchedVelocities:
        """Return the velocities of the present policy and of the one that acted."""
        chunk = MatchedChunk.from_tokens(tokens, self._num_points, self._shape)
        velocity, acting, target = (self._by_step(x) for x in (self.velocity, chunk.acting, chunk.target))
        return MatchedVelocities(velocity, acting, target, chunk.share)

    def slice_rows(self, num_rows: int) -> NftMatching:
        return NftMatching(self._shape, self._num_points, self.velocity[:num_rows])

    def _by_step(self, x: Tensor) -> Tensor:
        """Return [B, C, F, A] of [B, F, C*A]."""
        return x.unflatten(2, (self._shape.num_executed, self._shape.num_actions)).transpose(1, 2)


class NftSampler(ActionDistribution):
    """Samples chunks by the ODE, and draws their points. Each row's key draws all of its noise."""

    has_likelihood = False

    def __init__(self, method: Nft, shape: ChunkShape, velocity_fn: VelocityFn, num_rows: int, temperature: float):
        """temperature: a factor of the noise that the flow begins with."""
        self._method = method
        self._shape = shape
        self._velocity_fn = velocity_fn
        self._num_rows = num_rows
        self._temperature = temperature

    def sample(self, keys: np.ndarray) -> Tensor:
        """Return the tokens; row b depends on `keys[b]` and its own observation."""
        shape = self._shape
        num_points = self._method.num_points
        num_noise = shape.num_steps * shape.num_dims
        numbers = distributions.normals(keys, num_noise + num_points * (num_noise + 1)).float()
        first, noise, times = numbers.split([num_noise, num_points * num_noise, num_points], dim=1)
        chunk = self._flow(self._temperature * first.unflatten(1, (shape.num_steps, shape.num_dims)))
        noise = noise.unflatten(1, (num_points, shape.num_steps, shape.num_dims)).to(chunk)
        return self._matched(chunk, noise, drawn_shares(times).to(chunk)).to_tokens()

    def most_likely(self) -> Tensor:
        """Return the tokens of the ODE from one fixed noise, whose points are the actions themselves."""
        chunk = self._flow(self._shape.fixed_noise(self._num_rows))
        share = chunk.new_zeros(self._num_rows, self._method.num_points)
        return self._matched(
            chunk, torch.zeros_like(chunk)[:, None].expand(-1, share.shape[1], -1, -1), share
        ).to_tokens()

    def logprobs(self, tokens: Tensor) -> Tensor:
        return self._acting(tokens).logprobs(tokens)

    def entropy(self) -> Tensor:
        shape = self._shape
        size = (self._num_rows, shape.num_executed * self._method.num_points * shape.num_actions)
        return torch.full(size, ENTROPY)

    def slice_rows(self, num_rows: int) -> NftSampler:
        return NftSampler(self._method, self._shape, self._velocity_fn, num_rows, self._temperature)

    def _acting(self, tokens: Tensor) -> NftMatching:
        """Return the distribution of tokens that this policy sampled: they hold its velocities."""
        chunk = MatchedChunk.from_tokens(tokens, self._method.num_points, self._shape)
        return NftMatching(self._shape, self._method.num_points, chunk.acting)

    def _flow(self, x: Tensor) -> Tensor:
        """Run the ODE from noise to actions; both [B, S, D]."""
        for time in self._method.ode.times:
            velocity, _ = self._velocity_fn(x, torch.full((self._num_rows,), time), self._num_rows)
            x = self._method.ode.euler(x.to(velocity.device), velocity)
        return x

    def _matched(self, chunk: Tensor, noise: Tensor, share: Tensor) -> MatchedChunk:
        """Return points of a chunk [B, S, D]. noise: [B, F, S, D]; share: of noise, [B, F]."""
        flow_time = self._method.flow_time
        at = share[..., None, None]
        chunks = chunk[:, None]
        points = at * noise + (1.0 - at) * chunks
        acting = [
            self._shape.executed(self._velocity_fn(x, flow_time.of_share(share_of_point), self._num_rows)[0])
            for x, share_of_point in zip(points.unbind(1), share.unbind(1), strict=True)
        ]
        target = self._shape.executed(flow_time.velocity(noise, chunks))
        return MatchedChunk(points, share, target, torch.stack(acting, dim=1), self._shape.executed(chunk))


@dataclass(frozen=True)
class Nft(FlowMethod):
    """NFT: no step is random, and chunks keep points for flow matching."""

    num_steps: int
    num_points: int  # F
    flow_time: FlowTime = NOISE_AT_ONE

    @property
    def ode(self) -> FlowSde:
        """Times and steps of the flow, of which none is random."""
        return FlowSde(self.num_steps, 1.0, self.flow_time)

    def sampler(self, shape: ChunkShape, output: FlowOutput, velocity_fn: VelocityFn, temperature: float) -> NftSampler:
        return NftSampler(self, shape, velocity_fn, output.num_rows, temperature)

    def flow_input(self, shape: ChunkShape, tokens: Tensor) -> FlowInput:
        chunk = MatchedChunk.from_tokens(tokens, self.num_points, shape)
        return FlowInput(chunk.points, self.flow_time.of_share(chunk.share))

    def evaluate(self, shape: ChunkShape, tokens: Tensor, output: FlowOutput, temperature: float) -> NftMatching:
        assert output.velocity is not None
        return NftMatching(shape, self.num_points, shape.executed(output.velocity))
