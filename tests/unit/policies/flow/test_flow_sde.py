"""Flow-SDE against a velocity field that is known in closed form: a mixture of two normal distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rlrun.policies.flow.method import ChunkShape, FlowChoice, FlowSampler, FlowSde, FlowStep, normal_logprobs
from rlrun.policies.flow.spec import FirstNoise
from tests.numerics import assert_norm_close

CENTRES, WEIGHTS, SPREAD = torch.tensor([-1.0, 2.0]), torch.tensor([0.3, 0.7]), 0.4
SHAPE = ChunkShape(num_steps=3, num_dims=4, num_executed=2, num_actions=3)
SDE = FlowSde(4, 0.5)


def exact_velocity(x: Tensor, time: float) -> Tensor:
    """E[noise - action | x_t = x], for actions of the mixture and standard normal noise."""
    variance = time**2 + (1 - time) ** 2 * SPREAD**2
    away = x[..., None] - (1 - time) * CENTRES
    share = (WEIGHTS.log() - away.square() / (2 * variance)).softmax(-1)
    action = CENTRES + (1 - time) * SPREAD**2 / variance * away
    noise = time / variance * away
    return (share * (noise - action)).sum(-1)


def mixture_cdf(x: Tensor) -> Tensor:
    return (WEIGHTS * 0.5 * (1 + torch.erf((x[..., None] - CENTRES) / (SPREAD * math.sqrt(2))))).sum(-1)


def distance(drawn: Tensor) -> float:
    """Largest gap between the distribution of drawn numbers and the mixture (Kolmogorov and Smirnov)."""
    ordered = drawn.sort().values
    return float((mixture_cdf(ordered) - torch.arange(1, len(ordered) + 1) / len(ordered)).abs().max())


def sampled(num_steps: int, num_random: int, generator: torch.Generator) -> Tensor:
    """Draw numbers with `num_random` of the steps random; the others follow the ODE."""
    sde = FlowSde(num_steps, 0.5)
    x = torch.randn(20_000, generator=generator, dtype=torch.float64)
    chosen = set(torch.randperm(num_steps, generator=generator)[:num_random].tolist())
    for k, time in enumerate(sde.times):
        velocity = exact_velocity(x, time)
        if k in chosen:
            mean = sde.mean(x, velocity, torch.full((len(x),), k))
            x = mean + sde.stds[k] * torch.randn(len(x), generator=generator, dtype=torch.float64)
        else:
            x = sde.euler(x, velocity)
    return x


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_random_steps_keep_the_marginals(share: float) -> None:
    generator = torch.Generator().manual_seed(1)
    coarse, fine = (distance(sampled(k, round(share * k), generator)) for k in (8, 128))
    assert fine < 0.015 and fine < coarse


def test_without_the_drift_the_marginals_would_be_others() -> None:
    sde, generator = FlowSde(128, 0.5), torch.Generator().manual_seed(1)
    x = torch.randn(20_000, generator=generator, dtype=torch.float64)
    for k, time in enumerate(sde.times):
        x = sde.euler(x, exact_velocity(x, time)) + sde.stds[k] * torch.randn(len(x), generator=generator)
    assert distance(x) > 0.05


def test_times_and_deviations() -> None:
    assert SDE.times == (1.0, 0.75, 0.5, 0.25)
    rates = [1 / 0.25, 0.75 / 0.25, 1.0, 0.25 / 0.75]  # t / (1 - t), with the second time for t = 1
    assert SDE.stds == pytest.approx([0.5 * math.sqrt(rate * 0.25) for rate in rates])
    assert FlowSde(1, 0.5).stds == pytest.approx([0.5])


def test_the_mean_in_the_form_of_the_paper() -> None:
    """mu = x0 (1 - (t - d)) + x1 ((t - d) - s^2 d / 2t), with x0 = x - t v and x1 = x + (1 - t) v."""
    generator = torch.Generator().manual_seed(0)
    x, v = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    step = torch.arange(4)
    t = SDE.time_of(step).double()[:, None]
    s2d = SDE.std_of(step).double()[:, None] ** 2
    following = t - SDE.size
    wanted = (x - t * v) * (1 - following) + (x + (1 - t) * v) * (following - s2d / (2 * t))
    assert torch.linalg.norm(SDE.mean(x, v, step) - wanted) < 1e-6 * torch.linalg.norm(wanted)


def velocity_of(x: Tensor, time: Tensor) -> Tensor:
    """A smooth velocity that depends on all numbers of a row's chunk."""
    return torch.tanh(x.flatten(1).cumsum(1)).view(x.shape) * (1 + time[:, None, None]) - 0.3 * x + 0.5


def field(x: Tensor, time: Tensor, num_rows: int) -> tuple[Tensor, None]:
    return velocity_of(x, time), None


def sampler(num_rows: int = 64) -> FlowSampler:
    return FlowSampler(SDE, SHAPE, field, num_rows, 1.0)


def keys(num_rows: int = 64) -> np.ndarray:
    return np.arange(num_rows, dtype=np.uint64) * 977 + 5


def test_stored_and_recomputed_log_probabilities_agree() -> None:
    drawn = sampler()
    tokens = drawn.sample(keys())
    stored = drawn.logprobs(tokens)
    choice = FlowChoice.from_tokens(tokens, SHAPE.num_steps, SHAPE.num_dims)
    velocity = velocity_of(choice.before, SDE.time_of(choice.step))
    again = FlowStep.from_velocity(SDE, SHAPE, choice, velocity, 1.0).logprobs(tokens.clone())
    for found in (again, sampler().logprobs(tokens.clone())):
        assert torch.linalg.norm(found - stored) < 1e-5 * torch.linalg.norm(stored)
    assert set(choice.step.tolist()) == set(range(SDE.num_steps))


def test_a_row_depends_on_its_own_key_only() -> None:
    whole = sampler().sample(keys())
    assert torch.equal(whole[:3], sampler(3).sample(keys(3)))
    assert not torch.equal(whole, sampler().sample(keys() + np.uint64(1)))


def test_padding_and_steps_that_are_not_executed_never_get_random_noise() -> None:
    """The noise of the random step changes executed real numbers only; the rest follows the ODE."""
    tokens = sampler().sample(keys())
    choice = FlowChoice.from_tokens(tokens, SHAPE.num_steps, SHAPE.num_dims)
    at = choice.step == SDE.num_steps - 1  # the random step is the last: its result is the action
    assert torch.equal(choice.after[at], choice.action[at])
    assert tokens.shape[1] == 1 + 3 * 4 + 3 * 2 * 3
    assert sampler().logprobs(tokens).shape == (64, 2 * 3)


def test_the_drawn_step_is_distributed_as_its_log_probability_says() -> None:
    tokens = sampler(20_000).sample(keys(20_000))
    choice = FlowChoice.from_tokens(tokens, SHAPE.num_steps, SHAPE.num_dims)
    judged = sampler(20_000)._step_of(tokens.clone())
    scores = (choice.after - judged.mean) / judged.std
    assert abs(float(scores.mean())) < 0.01 and abs(float(scores.std()) - 1) < 0.01


def test_the_closed_kl_equals_the_mean_over_draws() -> None:
    mean, other, std = torch.tensor([[0.3]]), torch.tensor([[0.5]]), torch.tensor([[0.4]])
    x = mean + std * torch.randn(400_000, 1, generator=torch.Generator().manual_seed(0))
    drawn = (normal_logprobs(x, mean, std) - normal_logprobs(x, other, std)).mean()
    assert float(drawn) == pytest.approx(0.2**2 / (2 * 0.4**2), abs=0.003)


def test_the_most_likely_actions_are_the_ode_from_one_fixed_noise() -> None:
    x = SHAPE.fixed_noise(5)
    assert torch.equal(x, x[:1].expand(x.shape)) and 0.5 < float(x[0].std()) < 1.5
    for time in SDE.times:
        x = SDE.euler(x, velocity_of(x, torch.full((5,), time)))
    tokens = sampler(5).most_likely()
    action = FlowChoice.from_tokens(tokens, SHAPE.num_steps, SHAPE.num_dims).action
    assert torch.linalg.norm(action - SHAPE.executed(x)) < 1e-5 * torch.linalg.norm(action)
    assert sampler(5).logprobs(tokens).isfinite().all()


def test_a_fixed_first_noise_leaves_the_random_step_alone() -> None:
    fixed = FlowSampler(SDE, SHAPE, field, 600, 1.0, FirstNoise.fixed)
    tokens = fixed.sample(keys(600))
    choice = FlowChoice.from_tokens(tokens, SHAPE.num_steps, SHAPE.num_dims)
    at_first = choice.before[choice.step == 0]
    assert len(at_first) > 0 and torch.equal(at_first, SHAPE.fixed_noise(len(at_first)))
    scores = (choice.after - choice.mean) / SDE.std_of(choice.step)[:, None]
    assert abs(float(scores.mean())) < 0.05 and abs(float(scores.std()) - 1) < 0.05
    rows = slice(3, 7)
    again = FlowSampler(SDE, SHAPE, field, 4, 1.0, FirstNoise.fixed).sample(keys(600)[rows])
    assert_norm_close(again, tokens[rows], 1e-6)
    assert_norm_close(fixed._step_of(tokens.clone()).logprobs(tokens), fixed.logprobs(tokens), 1e-6)


def test_gradients_of_the_log_probability_against_finite_differences() -> None:
    tokens = sampler(4).sample(keys(4)).double()
    choice = FlowChoice.from_tokens(tokens, SHAPE.num_steps, SHAPE.num_dims)
    velocity = velocity_of(choice.before, SDE.time_of(choice.step)).double().requires_grad_()

    def total(v: Tensor) -> Tensor:
        return FlowStep.from_velocity(SDE, SHAPE, choice, v, 1.0).logprobs(tokens).sum()

    gradient = torch.autograd.grad(total(velocity), velocity)[0]
    direction = torch.randn(velocity.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = 1e-3
    numeric = (total(velocity + step * direction) - total(velocity - step * direction)) / (2 * step)
    assert float((gradient * direction).sum()) == pytest.approx(float(numeric.detach()), rel=1e-3)
    assert gradient[:, SHAPE.num_executed :].abs().sum() == 0 and gradient[..., SHAPE.num_actions :].abs().sum() == 0


def test_the_kl_from_a_reference_is_that_of_two_normal_distributions() -> None:
    tokens = sampler(6).sample(keys(6))
    choice = FlowChoice.from_tokens(tokens, SHAPE.num_steps, SHAPE.num_dims)
    velocity = velocity_of(choice.before, SDE.time_of(choice.step))
    mine, other = (FlowStep.from_velocity(SDE, SHAPE, choice, velocity + shift, 1.0) for shift in (0.0, 0.1))
    wanted = torch.distributions.kl_divergence(
        torch.distributions.Normal(mine.mean, mine.std), torch.distributions.Normal(other.mean, mine.std)
    )
    found = mine.exact_kl(other.kl_statistic(tokens))
    assert torch.linalg.norm(found - wanted) < 1e-5 * torch.linalg.norm(wanted)
    assert mine.exact_kl(mine.kl_statistic(tokens)).abs().sum() == 0
    assert_norm_close(other.kl_from_behavior(tokens), wanted, 1e-4)  # `mine` chose the tokens
    assert float(mine.kl_from_behavior(tokens).sum()) < 1e-9


def test_the_estimate_from_log_probabilities_agrees_with_the_closed_kl() -> None:
    """In the mean over many draws; the closed one has no noise of its own."""
    num_rows = 20_000
    tokens = sampler(num_rows).sample(keys(num_rows))
    choice = FlowChoice.from_tokens(tokens, SHAPE.num_steps, SHAPE.num_dims)
    velocity = velocity_of(choice.before, SDE.time_of(choice.step))
    acted, now = (FlowStep.from_velocity(SDE, SHAPE, choice, velocity + shift, 1.0) for shift in (0.0, 0.3))
    estimated = (acted.logprobs(tokens) - now.logprobs(tokens)).sum(1)
    assert float(estimated.mean()) == pytest.approx(float(now.kl_from_behavior(tokens).sum(1).mean()), rel=0.1)
