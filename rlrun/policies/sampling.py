"""Action tokens from logits: log-probabilities, entropy, and sampling that depends on a key per row only.

Everything is over the 256 action bins; there is no top-k, which would give trained tokens probability 0.
Shape legend: B rows, K action tokens, V = 256 bins.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def token_logprobs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """float32 [B, K]: log-probability of `tokens` (integers [B, K]) under softmax(logits [B, K, V] / temperature)."""
    scaled = logits.float() / temperature
    taken = scaled.gather(-1, tokens.long()[..., None]).squeeze(-1)
    return taken - scaled.logsumexp(-1)


def entropy(logits: Tensor, temperature: float) -> Tensor:
    """float32 [B, K], in nats."""
    logprobs = (logits.float() / temperature).log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def uniforms(keys: np.ndarray, num_tokens: int) -> Tensor:
    """float64 [B, num_tokens] in [0, 1): row b depends on `keys[b]` (uint64) and nothing else."""
    rows = [np.random.Generator(np.random.Philox(key=int(key))).random(num_tokens) for key in keys]
    return torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, num_tokens, dtype=torch.float64)


def normals(keys: np.ndarray, num_choices: int) -> Tensor:
    """float64 [B, num_choices], standard normal: row b depends on `keys[b]` (uint64) and nothing else."""
    rows = [np.random.Generator(np.random.Philox(key=int(key))).standard_normal(num_choices) for key in keys]
    return torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, num_choices, dtype=torch.float64)


def sample_tokens(logits: Tensor, temperature: float, uniforms: Tensor) -> Tensor:
    """int64 [B, K]: the bin where the cumulative distribution of each token passes its uniform number."""
    cumulative = (logits.double() / temperature).softmax(-1).cumsum(-1)
    wanted = uniforms.to(logits.device)[..., None] * cumulative[..., -1:]
    return torch.searchsorted(cumulative, wanted, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)
