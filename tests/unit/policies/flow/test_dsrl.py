"""DSRL: a distribution of the first noise, which the flow follows as an ODE."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from rlrun.policies.flow.dsrl import NoiseAction, NoiseDistribution
from rlrun.policies.flow.method import ChunkShape, FlowSde
from rlrun.policies.flow.policy import FlowPolicy
from tests.numerics import assert_norm_close
from tests.unit.policies.flow.test_policies import ROWS, A, chosen, frames, keys, new_policy

SHAPE = ChunkShape(num_steps=4, num_dims=5, num_executed=2, num_actions=3)
DRAW = torch.Generator().manual_seed(0)
MEAN, LOG_STD = torch.randn(6, 3, generator=DRAW), 0.3 * torch.randn(6, 3, generator=DRAW)


def judged(temperature: float = 1.0) -> NoiseDistribution:
    return NoiseDistribution(SHAPE, MEAN, LOG_STD, temperature)


def packed(raw: Tensor) -> Tensor:
    return NoiseAction(torch.zeros(len(raw), 7), raw, torch.zeros(len(raw), 6)).to_tokens()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_log_density_is_that_of_a_squashed_normal_distribution(temperature: float) -> None:
    squashed = TransformedDistribution(Normal(MEAN, temperature * LOG_STD.exp()), TanhTransform(cache_size=1))
    noise = squashed.sample()
    found = judged(temperature).logprobs(packed(noise.atanh()))
    assert found.shape == (6, 6)  # of every executed number, as masks of control steps have it
    assert_norm_close(found.sum(1), squashed.log_prob(noise).sum(1), 1e-4)
    assert_norm_close(found.view(6, 2, 3)[:, 0], found.view(6, 2, 3)[:, 1], 1e-6)


def test_the_entropy_is_the_mean_of_the_log_density() -> None:
    raw = MEAN + LOG_STD.exp() * torch.randn(20_000, 6, 3, generator=DRAW)
    means = -torch.stack([judged().logprobs(packed(part)) for part in raw.unbind(0)[:2000]]).mean(0)
    assert_norm_close(judged().entropy(), means, 0.05)


def test_gradients_pass_through_the_drawn_noise() -> None:
    """Against torch's squashed normal distribution, with the same normal numbers."""
    normals = torch.randn(6, 3, generator=DRAW)
    found = []
    for is_ours in (True, False):
        mean, log_std = (x.double().requires_grad_() for x in (MEAN, LOG_STD))
        if is_ours:
            noise, density = NoiseDistribution(SHAPE, mean, log_std, 1.0).reparameterized(normals.double())
        else:
            noise = (mean + log_std.exp() * normals.double()).tanh()
            squashed = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=0))
            density = squashed.log_prob(noise).sum(1)
        (noise.square().sum() + 0.3 * density.sum()).backward()
        found.append(torch.cat([mean.grad, log_std.grad]))  # type: ignore[list-item]
    assert_norm_close(found[0], found[1], 1e-6)


@pytest.fixture(scope="module", params=["smolvla", "pi05"])
def policy(request: pytest.FixtureRequest) -> FlowPolicy:
    section = "policy.smolvla" if request.param == "smolvla" else "policy.pi"
    return new_policy(request.param, f"{section}.sampling=dsrl")


def test_the_flow_follows_the_chosen_noise(policy: FlowPolicy) -> None:
    tokens, _ = chosen(policy)
    choice = NoiseAction.from_tokens(tokens, policy.shape)
    with torch.inference_mode():
        answer = policy.module(policy.processor(*frames(), policy.device), None)
        x = torch.zeros(ROWS, policy.shape.num_steps, policy.shape.num_dims)
        x[..., :A] = 1.5 * choice.raw.tanh()[:, None]
        num_steps = policy.settings.num_flow_steps
        for time in FlowSde(num_steps, 1.0).times:
            x = x - policy.module.at(x, torch.full((ROWS,), time), answer.prefix)[0] / num_steps
    assert_norm_close(choice.action, policy.shape.executed(x), 1e-5)
    assert_norm_close(choice.summary, answer.prefix.summary(), 1e-5)


def test_what_was_seen_gives_the_same_distribution_without_the_network(policy: FlowPolicy) -> None:
    tokens, stored = chosen(policy)
    seen, noise = policy.steered(tokens.clone())  # a copy outside of inference mode, for gradients
    distribution = policy.steer(seen)
    assert_norm_close(distribution.logprobs(tokens), stored, 1e-5)
    assert float(noise.abs().max()) < 1.0
    distribution.logprobs(tokens).sum().backward()
    reached = {name for name, parameter in policy.module.named_parameters() if parameter.grad is not None}
    assert reached
    assert all(name.startswith("noise_actor.") for name in reached)
    policy.module.zero_grad()


def test_nothing_is_known_at_first(policy: FlowPolicy) -> None:
    """A new noise actor draws nearly the same noise whatever it sees: standard normal before tanh."""
    with torch.inference_mode():
        distribution, _ = policy(*frames(), 1.0)
    assert float(distribution.mean.abs().max()) < 0.5
    assert_norm_close(distribution.entropy(), distribution.entropy().mean().expand(ROWS, 2 * A), 0.1)
    assert float(distribution.log_std.mean()) == pytest.approx(0.0, abs=0.2)


def test_a_row_depends_on_its_own_key_only(policy: FlowPolicy) -> None:
    with torch.inference_mode():
        whole, other = (policy(*frames(), 1.0)[0].sample(keys() + np.uint64(step)) for step in (0, 1))
        calm, again = (policy(*frames(), 1.0)[0].most_likely() for _ in range(2))
    assert not torch.equal(whole, other)
    assert torch.equal(calm, again)
