"""Action tokens from logits: log-probabilities, entropy, and sampling that depends on a key per row only.

All functions consider the 256 action bins only; no top-k, since it would give trained tokens probability 0.
Shape legend: B rows, K action tokens, V = 256 bins.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from rlrun.data import seeds

_NUM_DROPPED = np.uint64(11)  # bits of 64, since a float64 has 53


def token_logprobs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Return float32 [B, K]: the log-probability of `tokens` (integers [B, K]) under softmax(logits / temperature)."""
    logprobs = (logits.float() / temperature).log_softmax(-1)
    return logprobs.gather(-1, tokens.long()[..., None]).squeeze(-1)


def entropy(logits: Tensor, temperature: float) -> Tensor:
    """Return float32 [B, K], in nats."""
    logprobs = (logits.float() / temperature).log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def uniforms(keys: np.ndarray, num_tokens: int) -> Tensor:
    """Return float64 [B, num_tokens] in [0, 1): row b depends on `keys[b]` (uint64) only."""
    return torch.from_numpy(_bits(keys, num_tokens) * 2.0**-53)


def normals(keys: np.ndarray, num_choices: int) -> Tensor:
    """Return float64 [B, num_choices], standard normal: row b depends on `keys[b]` (uint64) only."""
    return torch.special.ndtri(torch.from_numpy((_bits(keys, num_choices) + 0.5) * 2.0**-53))


def _bits(keys: np.ndarray, num: int) -> np.ndarray:
    """Return uint64 [B, num] below 2**53: a SplitMix64 stream for each row, all rows at once."""
    state = np.asarray(keys, np.uint64)[:, None] + _strides(num)  # wraps around
    return seeds.mixed(state) >> _NUM_DROPPED


@cache
def _strides(num: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        return seeds.GAMMA * np.arange(1, num + 1, dtype=np.uint64)


def sample_tokens(logits: Tensor, temperature: float, uniforms: Tensor) -> Tensor:
    """Return int64 [B, K]: the bin in which the cumulative distribution of each token passes its uniform number."""
    cumulative = (logits.float() / temperature).softmax(-1).cumsum(-1, dtype=torch.float64)
    wanted = uniforms.to(logits.device)[..., None] * cumulative[..., -1:]
    return torch.searchsorted(cumulative, wanted, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)
