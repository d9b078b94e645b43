"""Flow-Noise: chains of random steps with a learned deviation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rlrun.policies.flow.flow_noise import Chain, ChainSampler, FlowNoise
from rlrun.policies.flow.method import ChunkShape, FlowChain
from rlrun.policies.flow.model import FlowOutput, NoiseHead
from rlrun.policies.flow.spec import FirstNoise
from tests.numerics import assert_norm_close
from tests.unit.policies.flow.test_flow_sde import keys, velocity_of

SHAPE = ChunkShape(num_steps=3, num_dims=4, num_executed=2, num_actions=3)
METHOD = FlowNoise(4)


def deviation_of(x: Tensor, time: Tensor) -> Tensor:
    return 0.1 + 0.05 * torch.tanh(x.flatten(1).mean(1) + time)[:, None, None].expand(x.shape)


def field(x: Tensor, time: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    return velocity_of(x, time), deviation_of(x, time)


def sampler(num_rows: int = 64, temperature: float = 1.0) -> ChainSampler:
    return ChainSampler(METHOD, SHAPE, field, num_rows, temperature)


def answer_at(tokens: Tensor) -> FlowOutput:
    point = METHOD.flow_input(SHAPE, tokens)
    found = [field(x, time, len(x)) for x, time in zip(point.x.unbind(1), point.time.unbind(1), strict=True)]
    return FlowOutput(None, None, torch.stack([v for v, _ in found], 1), torch.stack([s for _, s in found], 1))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_stored_and_recomputed_log_probabilities_agree(temperature: float) -> None:
    drawn = sampler(temperature=temperature)
    tokens = drawn.sample(keys())
    stored, entropy = drawn.logprobs(tokens), drawn.entropy()
    assert stored.shape == (64, 6)
    judged = METHOD.evaluate(SHAPE, tokens.clone(), answer_at(tokens), temperature)
    assert_norm_close(judged.logprobs(tokens), stored, 1e-5)
    assert_norm_close(judged.entropy(), entropy, 1e-5)
    assert_norm_close(sampler(temperature=temperature).logprobs(tokens.clone()), stored, 1e-5)
    assert_norm_close(judged.slice_rows(3).logprobs(tokens[:3]), stored[:3], 1e-5)


def test_a_fixed_first_noise_is_the_same_in_every_row() -> None:
    fixed = ChainSampler(FlowNoise(4, FirstNoise.fixed), SHAPE, field, 64, 1.0)
    chain = FlowChain.from_tokens(fixed.sample(keys()), 4, 3, 4)
    assert torch.equal(chain.before[:, 0], SHAPE.fixed_noise(64))
    assert float(chain.before[:, 1].std(0).mean()) > 0.01


def test_the_log_probability_is_that_of_the_chain() -> None:
    """Against torch's normal distribution, step by step."""
    tokens = sampler().sample(keys())
    chain = FlowChain.from_tokens(tokens, 4, 3, 4)
    total = torch.zeros(64, 2, 3)
    for k in range(4):
        x, time = chain.before[:, k], torch.full((64,), 1 - k / 4)
        mean, std = x - velocity_of(x, time) / 4, deviation_of(x, time)
        after = chain.before[:, k + 1, :2, :3] if k < 3 else chain.action.view(64, 2, 3)
        total += torch.distributions.Normal(mean[:, :2, :3], std[:, :2, :3]).log_prob(after)
    assert_norm_close(sampler().logprobs(tokens), total.flatten(1), 1e-5)


def test_a_row_depends_on_its_own_key_only() -> None:
    whole = sampler().sample(keys())
    assert torch.equal(whole[:3], sampler(3).sample(keys(3)))
    assert not torch.equal(whole, sampler().sample(keys() + np.uint64(1)))


def test_padding_and_steps_that_are_not_executed_follow_the_ode() -> None:
    tokens = sampler().sample(keys())
    chain = FlowChain.from_tokens(tokens, 4, 3, 4)
    for k in range(3):
        x, time = chain.before[:, k], torch.full((64,), 1 - k / 4)
        following = x - velocity_of(x, time) / 4
        assert torch.equal(chain.before[:, k + 1, 2:], following[:, 2:])
        assert torch.equal(chain.before[:, k + 1, :, 3:], following[..., 3:])
        assert not torch.equal(chain.before[:, k + 1, :2, :3], following[:, :2, :3])


def test_steps_are_distributed_as_their_log_probability_says() -> None:
    drawn = sampler(20_000)
    tokens = drawn.sample(keys(20_000))
    judged = METHOD.evaluate(SHAPE, tokens, answer_at(tokens), 1.0)
    chain = FlowChain.from_tokens(tokens, 4, 3, 4)
    after = torch.cat([SHAPE.executed(chain.before)[:, 1:], chain.action[:, None]], dim=1)
    scores = (after - judged.mean) / judged.std
    assert scores.mean((0, 2)).abs().max() < 0.015
    assert (scores.std((0, 2)) - 1).abs().max() < 0.015
    expected = -drawn.logprobs(tokens).mean()
    assert float(drawn.entropy().mean()) == pytest.approx(float(expected), abs=0.02)


def test_gradients_of_the_log_probability_against_finite_differences() -> None:
    tokens = sampler(4).sample(keys(4))
    mean, std = (x.double() for x in (_judged(tokens).mean, _judged(tokens).std))

    def total(mean: Tensor, std: Tensor) -> Tensor:
        return Chain(METHOD, SHAPE, mean, std).logprobs(tokens.double()).sum()

    mean.requires_grad_()
    std.requires_grad_()
    gradients = torch.autograd.grad(total(mean, std), (mean, std))
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(mean.shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    step = 1e-6
    ahead, back = (total(mean + s * directions[0], std + s * directions[1]) for s in (step, -step))
    found = sum((gradient * direction).sum() for gradient, direction in zip(gradients, directions, strict=True))
    assert float(found) == pytest.approx(float((ahead - back).detach() / (2 * step)), rel=1e-3)


def _judged(tokens: Tensor) -> Chain:
    return METHOD.evaluate(SHAPE, tokens, answer_at(tokens), 1.0)


def test_the_most_likely_actions_are_the_ode_from_one_fixed_noise() -> None:
    x = SHAPE.fixed_noise(5)
    for time in METHOD.times:
        x = x - velocity_of(x, torch.full((5,), time)) / 4
    action = FlowChain.from_tokens(sampler(5).most_likely(), 4, 3, 4).action
    assert_norm_close(action, SHAPE.executed(x), 1e-6)


def test_deviations_stay_in_their_range_and_begin_in_its_middle() -> None:
    torch.manual_seed(0)
    head = NoiseHead(16, 4, (0.08, 0.16))
    head.initialize()
    hidden = torch.randn(3, 5, 16)
    begun = head(hidden).detach()
    assert begun.shape == (3, 5, 4)
    assert begun.log().mean() == pytest.approx(0.5 * (math.log(0.08) + math.log(0.16)), abs=0.02)
    assert head(hidden.bfloat16()).dtype == torch.float32
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(100.0)
    driven = head(hidden).detach()
    assert driven.min() >= 0.08 * (1 - 1e-6)
    assert driven.max() <= 0.16 * (1 + 1e-6)
    assert driven.max() - driven.min() > 0.07
