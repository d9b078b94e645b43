"""A flow whose time runs from noise at 0 to actions at 1 is that of openpi read backwards, in every method and loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.policies.flow.dsrl import Dsrl
from rlrun.policies.flow.flow_noise import FlowNoise
from rlrun.policies.flow.method import ChunkShape, FlowMethod, FlowSde, FlowSdeMethod, VelocityFn
from rlrun.policies.flow.model import FlowOutput, Matching
from rlrun.policies.flow.time import NOISE_AT_ONE as DOWN
from rlrun.policies.flow.time import NOISE_AT_ZERO as UP
from rlrun.policies.flow.time import FlowTime
from tests.numerics import assert_norm_close

SHAPE, ROWS, STEPS = ChunkShape(num_steps=3, num_dims=4, num_executed=2, num_actions=3), 5, 4
KEYS = np.arange(ROWS, dtype=np.uint64)


def methods(flow_time: FlowTime) -> dict[str, FlowMethod]:
    return {
        "flow_sde": FlowSdeMethod(FlowSde(STEPS, 0.5, flow_time)),
        "flow_noise": FlowNoise(STEPS, flow_time=flow_time),
        "dsrl": Dsrl(STEPS, 1.5, flow_time),
    }


class Summary:
    """A prefix of which only the summary is read."""

    mask = torch.ones(ROWS, 1, dtype=torch.bool)

    def summary(self) -> Tensor:
        return torch.linspace(0.0, 1.0, 2 * ROWS).view(ROWS, 2)


def output(velocity: Tensor | None = None, noise: Tensor | None = None) -> FlowOutput:
    actor = torch.full((ROWS, 3), 0.3), torch.full((ROWS, 3), -0.5)
    return FlowOutput(Summary(), None, velocity, noise, actor)


def field(flow_time: FlowTime) -> VelocityFn:
    """One flow, whose velocity depends on the point and the share of noise, in the network's convention."""

    def velocity_fn(x: Tensor, time: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        towards_noise = torch.sin(3 * x) + flow_time.share(time)[:, None, None] * (x - 0.7)
        return (-towards_noise if flow_time is UP else towards_noise), 0.1 + 0.05 * x.square()

    return velocity_fn


def evaluated(method: FlowMethod, flow_time: FlowTime, tokens: Tensor) -> ActionDistribution:
    inputs = method.flow_input(SHAPE, tokens)
    if inputs is None:
        return method.evaluate(SHAPE, tokens, output(), 1.0)
    found = [field(flow_time)(x, t, ROWS) for x, t in zip(inputs.x.unbind(1), inputs.time.unbind(1), strict=True)]
    velocity, noise = (torch.stack(parts, dim=1) for parts in zip(*found, strict=True))
    return method.evaluate(SHAPE, tokens, output(velocity, noise), 1.0)


@pytest.mark.parametrize("name", methods(UP))
def test_samples_and_their_likelihoods_are_those_of_the_other_direction(name: str) -> None:
    found = {}
    for flow_time in (DOWN, UP):
        method = methods(flow_time)[name]
        sampler = method.sampler(SHAPE, output(), field(flow_time), 1.0)
        tokens = sampler.sample(KEYS)
        learned = evaluated(method, flow_time, tokens)
        found[flow_time] = (tokens, sampler.logprobs(tokens), learned.logprobs(tokens), sampler.most_likely())
        assert_norm_close(learned.logprobs(tokens), sampler.logprobs(tokens), 1e-5)
    for one, other in zip(found[UP], found[DOWN], strict=True):
        assert_norm_close(one, other, 1e-5)


@pytest.mark.parametrize("name", ["flow_sde", "flow_noise"])
def test_the_network_is_asked_at_its_own_times(name: str) -> None:
    asked: dict[FlowTime, list[float]] = {}
    for flow_time in (DOWN, UP):
        times: list[float] = []

        def velocity_fn(x: Tensor, time: Tensor, num_rows: int, times: list[float] = times) -> tuple[Tensor, Tensor]:
            times.append(float(time[0]))
            return torch.zeros_like(x), torch.ones_like(x)

        methods(flow_time)[name].sampler(SHAPE, output(), velocity_fn, 1.0).most_likely()
        asked[flow_time] = times
    assert asked == {DOWN: [1.0, 0.75, 0.5, 0.25], UP: [0.0, 0.25, 0.5, 0.75]}


def test_flow_matching_shows_the_same_points_and_the_opposite_velocity() -> None:
    actions = torch.randn(ROWS, 3, 4, generator=torch.Generator().manual_seed(0))
    down, up = (Matching.sample(actions, 7, flow_time) for flow_time in (DOWN, UP))
    assert torch.equal(down.flow_input.x, up.flow_input.x)
    assert torch.equal(up.target, -down.target)
    assert_norm_close(up.flow_input.time, 1.0 - down.flow_input.time, 1e-6)
    valid = torch.ones(ROWS, 2, dtype=torch.bool)
    velocity = torch.randn(ROWS, 3, 4, generator=torch.Generator().manual_seed(1))
    assert_norm_close(up.loss(-velocity, valid, 3), down.loss(velocity, valid, 3), 1e-6)
    at = up.flow_input.time[:, 0, None, None]
    noise = actions - up.target
    assert_norm_close(up.flow_input.x[:, 0], at * actions + (1 - at) * noise, 1e-5)


@pytest.mark.parametrize("flow_time", [DOWN, UP], ids=["down", "up"])
def test_a_step_along_the_exact_velocity_stays_on_the_path(flow_time: FlowTime) -> None:
    """x + (time - t) v leads from any point of the straight path to any other, to both of its ends."""
    noise, action = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0])
    velocity, share = flow_time.velocity(noise, action), 0.6
    x = share * noise + (1 - share) * action
    assert_norm_close(flow_time.to_action(x, velocity, share), action, 1e-6)
    assert_norm_close(flow_time.to_noise(x, velocity, 1.0 - share), noise, 1e-6)
    assert flow_time.share(flow_time.of_share(share)) == pytest.approx(share)
    assert [flow_time.after(step, 2) for step in range(3)] == [flow_time.noise, 0.5, flow_time.action]


def test_another_direction_than_the_network_has_is_seen() -> None:
    method = replace(FlowSde(STEPS, 0.5, UP), flow_time=DOWN)
    wrong = FlowSdeMethod(method).sampler(SHAPE, output(), field(UP), 1.0).most_likely()
    right = FlowSdeMethod(FlowSde(STEPS, 0.5, UP)).sampler(SHAPE, output(), field(UP), 1.0).most_likely()
    assert torch.linalg.norm(wrong - right) > 0.1 * torch.linalg.norm(right)
