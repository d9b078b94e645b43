"""Outputs of a policy: the action distribution, of K independent bins or numbers per row, and the critic's value.

Sampling depends on a key per row only, whatever the batch.

Shape legend: B rows, K choices, V bins, D width of features.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.edges import seeds

_NUM_DROPPED = np.uint64(11)  # bits of 64, since a float64 has 53
NODES, WEIGHTS = (torch.tensor(x) for x in np.polynomial.hermite_e.hermegauss(16))  # of the entropy's integral
LAST_VALUE_STD = 0.02  # of the last layer's weights: small, so that the first values are near zero


def token_logprobs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Return float32 [B, K]: the log-probability of `tokens` (integers [B, K]) under softmax(logits / temperature)."""
    logprobs = (logits.float() / temperature).log_softmax(-1)
    return logprobs.gather(-1, tokens.long()[..., None]).squeeze(-1)


def entropy(logits: Tensor, temperature: float) -> Tensor:
    """Return float32 [B, K], in nats."""
    logprobs = (logits.float() / temperature).log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def logprob_variance(logits: Tensor, temperature: float) -> Tensor:
    """Return float32 [B, K]: the variance of the log-probability of a token that is drawn."""
    logprobs = (logits.float() / temperature).log_softmax(-1)
    probabilities = logprobs.exp()
    mean = (probabilities * logprobs).sum(-1, keepdim=True)
    return (probabilities * (logprobs - mean).square()).sum(-1)


def uniforms(keys: np.ndarray, num_tokens: int) -> Tensor:
    """Return float64 [B, num_tokens] in [0, 1): row b depends on `keys[b]` (uint64) only."""
    return torch.from_numpy(_bits(keys, num_tokens) * 2.0**-53)


def normals(keys: np.ndarray, num_choices: int) -> Tensor:
    """Return float64 [B, num_choices], standard normal: row b depends on `keys[b]` (uint64) only."""
    return torch.special.ndtri(torch.from_numpy((_bits(keys, num_choices) + 0.5) * 2.0**-53))


def _bits(keys: np.ndarray, num: int) -> np.ndarray:
    """Return uint64 [B, num] below 2**53: a SplitMix64 stream for each row, all rows at once."""
    state = np.asarray(keys, np.uint64)[:, None] + _strides(num)  # wraps around
    return seeds.splitmix64(state) >> _NUM_DROPPED


@cache
def _strides(num: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        return seeds.SPLITMIX_GAMMA * np.arange(1, num + 1, dtype=np.uint64)


def sample_tokens(logits: Tensor, temperature: float, uniforms: Tensor) -> Tensor:
    """Return int64 [B, K]: the bin in which the cumulative distribution of each token passes its uniform number."""
    cumulative = (logits.float() / temperature).softmax(-1).cumsum(-1, dtype=torch.float64)
    wanted = uniforms.to(logits.device)[..., None] * cumulative[..., -1:]
    return torch.searchsorted(cumulative, wanted, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


class Bins(ActionDistribution):
    """Categorical over V bins; tokens are uint8 indices. No top-k, since it would give trained tokens probability 0."""

    def __init__(self, logits: Tensor, temperature: float):
        self.logits = logits  # float32 [B, K, V]
        self._temperature = temperature

    def sample(self, keys: np.ndarray) -> Tensor:
        drawn = uniforms(keys, self.logits.shape[1])
        return sample_tokens(self.logits, self._temperature, drawn).to(torch.uint8)

    def most_likely(self) -> Tensor:
        return self.logits.argmax(-1).to(torch.uint8)

    def logprobs(self, tokens: Tensor) -> Tensor:
        return token_logprobs(self.logits, tokens, self._temperature)

    def entropy(self) -> Tensor:
        return entropy(self.logits, self._temperature)

    def logprob_variance(self) -> Tensor:
        return logprob_variance(self.logits, self._temperature)

    def slice_rows(self, num_rows: int) -> Bins:
        return Bins(self.logits[:num_rows], self._temperature)


class Gaussian(ActionDistribution):
    """Independent normal numbers; the temperature scales their deviation. Tokens are float32."""

    def __init__(self, mean: Tensor, log_std: Tensor, temperature: float):
        self.mean = mean  # float32 [B, K]
        self._log_std = log_std if temperature == 1.0 else log_std + math.log(temperature)  # float32 [B, K]

    def sample(self, keys: np.ndarray) -> Tensor:
        drawn = normals(keys, self.mean.shape[1]).to(self.mean)
        return self.mean + self._log_std.exp() * drawn

    def most_likely(self) -> Tensor:
        return self.mean

    def logprobs(self, tokens: Tensor) -> Tensor:
        deviation = (tokens - self.mean) * (-self._log_std).exp()
        return torch.addcmul(-0.5 * math.log(2 * math.pi) - self._log_std, deviation, deviation, value=-0.5)

    def entropy(self) -> Tensor:
        return 0.5 * math.log(2 * math.pi * math.e) + self._log_std

    def slice_rows(self, num_rows: int) -> Gaussian:
        if num_rows == len(self.mean):
            return self
        return Gaussian(self.mean[:num_rows], self._log_std[:num_rows], temperature=1.0)


def squashed_logprobs(raw: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density of tanh(raw) where raw is normal, number by number; all have one shape."""
    deviation = (raw - mean) * (-log_std).exp()
    return -0.5 * deviation.square() - log_std - 0.5 * math.log(2 * math.pi) - _log_slope(raw)


def squashed_entropy(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the entropy of tanh of a normal number, by quadrature, number by number."""
    nodes = NODES.to(mean)
    weights = WEIGHTS.to(mean)
    raw = mean[..., None] + log_std.exp()[..., None] * nodes
    stretched = (_log_slope(raw) * weights).sum(-1) / weights.sum()
    return 0.5 * math.log(2 * math.pi * math.e) + log_std + stretched


def _log_slope(raw: Tensor) -> Tensor:
    """Return log(1 - tanh(raw)^2), without cancellation."""
    return 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))


class Squashed(ActionDistribution):
    """Independent numbers between -1 and 1: tanh of normal ones, whose deviation the temperature scales.

    Tokens are float32 numbers before tanh, whose densities stay finite; log-probabilities are those after tanh.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, temperature: float):
        self.mean = mean  # float32 [B, K], before tanh
        self.log_std = log_std if temperature == 1.0 else log_std + math.log(temperature)  # float32 [B, K]

    def sample(self, keys: np.ndarray) -> Tensor:
        return self.mean + self.log_std.exp() * normals(keys, self.mean.shape[1]).to(self.mean)

    def most_likely(self) -> Tensor:
        return self.mean

    def reparameterized(self, normals: Tensor) -> tuple[Tensor, Tensor]:
        """Return (numbers after tanh [B, K], log-density of each row [B]), differentiable. normals: float32 [B, K]."""
        raw = self.mean + self.log_std.exp() * normals
        return raw.tanh(), squashed_logprobs(raw, self.mean, self.log_std).sum(1)

    def logprobs(self, tokens: Tensor) -> Tensor:
        return squashed_logprobs(tokens, self.mean, self.log_std)

    def entropy(self) -> Tensor:
        return squashed_entropy(self.mean, self.log_std)

    def slice_rows(self, num_rows: int) -> Squashed:
        return Squashed(self.mean[:num_rows], self.log_std[:num_rows], temperature=1.0)


class ValueHead(nn.Module):
    """Critic's head: [B, D] -> values [B], in float32 whatever the precision of the policy."""

    def __init__(self, width: int, hidden_sizes: list[int]):
        super().__init__()
        sizes = [width, *hidden_sizes]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1, bias=False))

    @torch.no_grad()
    def initialize(self) -> None:
        """Initialize by fan-in, and the last layer so that the first values are near zero."""
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                is_last = layer is self.layers[-1]
                layer.weight.normal_(std=LAST_VALUE_STD if is_last else layer.weight.shape[1] ** -0.5)
                if layer.bias is not None:
                    layer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Compute in float32, whatever the precision of the weights."""
        x = x.float()
        for layer in self.layers:
            x = linear_in_float32(x, layer.weight, layer.bias) if isinstance(layer, nn.Linear) else layer(x)
        return x.squeeze(-1)


def linear_in_float32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T (+ bias) in float32.

    Logits of a bfloat16 product would be rounded once more, which doubles the gap between the log-probabilities of
    rollout and actor. For 256 rows of weights the float32 product costs next to nothing.
    """
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float())
