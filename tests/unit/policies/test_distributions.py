"""Distributions against torch's own, and sampling that depends on keys alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.policies.distributions import Bins, Gaussian, Squashed
from tests.numerics import assert_norm_close, rounding

B, K, V, TEMPERATURE = 5, 3, 7, 1.4


def gaussian(seed: int = 0) -> Gaussian:
    draw = torch.Generator().manual_seed(seed)
    return Gaussian(torch.randn(B, K, generator=draw), torch.randn(B, K, generator=draw), TEMPERATURE)


def squashed(seed: int = 0) -> Squashed:
    draw = torch.Generator().manual_seed(seed)
    return Squashed(torch.randn(B, K, generator=draw), torch.randn(B, K, generator=draw), TEMPERATURE)


def bins(seed: int = 0) -> Bins:
    return Bins(torch.randn(B, K, V, generator=torch.Generator().manual_seed(seed)), TEMPERATURE)


def keys(first: int = 0, count: int = B) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint64)


@pytest.mark.parametrize("made", [gaussian, squashed, bins])
def test_a_key_decides_its_row_only(made) -> None:
    distribution: ActionDistribution = made()
    whole = distribution.sample(keys())
    assert torch.equal(whole, distribution.sample(keys()))
    assert torch.equal(whole[:2], distribution.slice_rows(2).sample(keys(count=2)))
    assert not torch.equal(whole, distribution.sample(keys(first=100)))
    part = distribution.slice_rows(2)
    assert_norm_close(part.logprobs(whole[:2]), distribution.logprobs(whole)[:2], rounding(V))
    assert_norm_close(part.entropy(), distribution.entropy()[:2], rounding(V))


def test_gaussian_is_torchs() -> None:
    draw = torch.Generator().manual_seed(1)
    mean, log_std = torch.randn(B, K, generator=draw), torch.randn(B, K, generator=draw)
    expected = torch.distributions.Normal(mean, log_std.exp() * TEMPERATURE)
    ours = Gaussian(mean, log_std, TEMPERATURE)
    tokens = ours.sample(keys())
    assert tokens.dtype == torch.float32
    assert_norm_close(ours.logprobs(tokens), expected.log_prob(tokens), rounding(V))
    assert_norm_close(ours.entropy(), expected.entropy(), rounding(V))
    assert torch.equal(ours.most_likely(), mean)


def test_gaussian_samples_have_its_mean_and_deviation() -> None:
    many = 4000
    ours = Gaussian(torch.full((many, 2), 3.0), torch.full((many, 2), -1.0), TEMPERATURE)
    tokens = ours.sample(keys(count=many))
    assert tokens.mean(0).tolist() == pytest.approx([3.0, 3.0], abs=0.05)
    assert tokens.std(0).tolist() == pytest.approx([np.exp(-1) * TEMPERATURE] * 2, rel=0.05)


def test_bins_are_torchs() -> None:
    ours = bins(2)
    expected = torch.distributions.Categorical(logits=ours.logits / TEMPERATURE)
    tokens = ours.sample(keys())
    assert tokens.dtype == torch.uint8
    assert_norm_close(ours.logprobs(tokens), expected.log_prob(tokens.long()), rounding(V))
    assert_norm_close(ours.entropy(), expected.entropy(), rounding(V))
    assert torch.equal(ours.most_likely().long(), ours.logits.argmax(-1))


def test_squashed_numbers_have_torchs_density_also_far_out() -> None:
    """Against torch's transformed distribution in float64, whose inverse of tanh is exact enough near the middle."""
    ours = squashed(3)
    tokens = ours.sample(keys())
    base = torch.distributions.Normal(ours.mean.double(), ours.log_std.double().exp())
    expected = torch.distributions.TransformedDistribution(base, torch.distributions.TanhTransform())
    assert_norm_close(ours.logprobs(tokens), expected.log_prob(tokens.double().tanh()).float(), 1e-5)
    far = Squashed(torch.zeros(1, 2), torch.zeros(1, 2), 1.0).logprobs(torch.tensor([[-20.0, 20.0]]))
    assert far.tolist()[0] == pytest.approx([-200 - 0.5 * np.log(2 * np.pi) + 40 - 2 * np.log(2)] * 2)


def test_the_entropy_of_squashed_numbers_is_the_mean_of_their_log_densities() -> None:
    many = 40_000
    ours = Squashed(torch.full((many, 1), 0.7), torch.full((many, 1), -0.3), TEMPERATURE)
    drawn = ours.logprobs(ours.sample(keys(count=many)))
    assert float(ours.entropy()[0]) == pytest.approx(-float(drawn.mean()), abs=0.02)


def test_reparameterized_numbers_are_those_of_the_same_normals() -> None:
    ours = squashed(4)
    normals = torch.randn(B, K, generator=torch.Generator().manual_seed(5))
    numbers, density = ours.reparameterized(normals)
    raw = ours.mean + ours.log_std.exp() * normals
    assert torch.equal(numbers, raw.tanh()) and (numbers.abs() <= 1).all()
    assert_norm_close(density, ours.logprobs(raw).sum(1), rounding(K))
