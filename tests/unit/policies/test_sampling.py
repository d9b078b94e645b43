"""Sampling: right frequencies, right log-probabilities, and the same tokens whatever the batch."""

from __future__ import annotations

import math

import numpy as np
import torch

from rlrun.policies.distributions import entropy, sample_tokens, token_logprobs, uniforms
from tests.numerics import assert_norm_close, rounding


def test_logprobs_and_entropy_against_a_loop() -> None:
    logits = torch.randn(2, 3, 256, generator=torch.Generator().manual_seed(0)) * 3
    tokens = torch.tensor([[0, 17, 255], [3, 3, 100]])
    for temperature in (0.6, 1.0, 1.6):
        ours, spread = token_logprobs(logits, tokens, temperature), entropy(logits, temperature)
        for b in range(2):
            for k in range(3):
                weights = [math.exp(float(x) / temperature) for x in logits[b, k]]
                shares = [weight / sum(weights) for weight in weights]
                assert_norm_close(ours[b, k], math.log(shares[tokens[b, k]]), rounding(256))
                assert_norm_close(spread[b, k], -sum(p * math.log(p) for p in shares), rounding(256))


def test_frequencies_follow_the_distribution() -> None:
    """20,000 draws from four bins with mass; chi-square with 3 degrees of freedom below its 99.99 % point."""
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = torch.full((1, 1, 256), -torch.inf)
    logits[0, 0, [2, 90, 91, 255]] = shares.log()
    draws = uniforms(np.arange(20_000, dtype=np.uint64), 1)
    tokens = sample_tokens(logits.expand(20_000, 1, 256), 1.0, draws)
    counts = torch.stack([(tokens == bin).sum() for bin in (2, 90, 91, 255)])
    assert counts.sum() == 20_000  # nothing without mass was drawn
    expected = shares * 20_000
    assert float(((counts - expected) ** 2 / expected).sum()) < 21.1


def test_temperature_sharpens() -> None:
    logits = torch.zeros(5000, 1, 256)
    logits[..., 7] = 3.0
    draws = uniforms(np.arange(5000, dtype=np.uint64), 1)
    hot, cold = ((sample_tokens(logits, t, draws) == 7).float().mean() for t in (1.0, 0.4))
    assert cold > hot + 0.3


def test_tokens_depend_on_key_and_logits_only() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(16, 6, 256, generator=generator)
    keys = np.random.default_rng(0).integers(0, 2**64, 16, dtype=np.uint64)
    whole = sample_tokens(logits, 1.0, uniforms(keys, 6))
    order = np.random.default_rng(1).permutation(16)
    assert torch.equal(sample_tokens(logits[order], 1.0, uniforms(keys[order], 6)), whole[order])
    for row in range(16):
        alone = sample_tokens(logits[row : row + 1], 1.0, uniforms(keys[row : row + 1], 6))
        assert torch.equal(alone[0], whole[row])
    assert not torch.equal(sample_tokens(logits, 1.0, uniforms(keys + np.uint64(1), 6)), whole)


def test_uniforms_of_neighbouring_keys_are_independent() -> None:
    numbers = uniforms(np.arange(4000, dtype=np.uint64), 2)
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    for a, b in ((numbers[:-1, 0], numbers[1:, 0]), (numbers[:, 0], numbers[:, 1])):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.06


def test_extreme_uniforms_stay_in_range() -> None:
    logits = torch.zeros(1, 2, 256)
    tokens = sample_tokens(logits, 1.0, torch.tensor([[0.0, 1.0 - 2**-53]], dtype=torch.float64))
    assert tokens.tolist() == [[0, 255]]
