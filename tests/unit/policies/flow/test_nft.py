"""NFT's points: on the path of the chosen chunk, drawn by the row's key, with velocities of the policy that acted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from rlrun.policies.flow.method import ChunkShape, VelocityFn
from rlrun.policies.flow.model import FlowInput, FlowOutput, Matching
from rlrun.policies.flow.nft import MatchedChunk, Nft, NftMatching, NftSampler
from rlrun.policies.flow.time import NOISE_AT_ONE as DOWN
from rlrun.policies.flow.time import NOISE_AT_ZERO as UP
from rlrun.policies.flow.time import FlowTime
from rlrun.policies.opening import open_policy
from tests.numerics import assert_norm_close
from tests.unit.policies.flow.test_flow_time import field
from tests.unit.policies.flow.test_policies import ROWS, A, chosen, config, frames, new_policy, section

SHAPE, STEPS, POINTS = ChunkShape(num_steps=3, num_dims=4, num_executed=2, num_actions=3), 4, 2
TIMES = pytest.mark.parametrize("flow_time", [DOWN, UP], ids=["down", "up"])


def keys(num_rows: int) -> np.ndarray:
    return np.arange(num_rows, dtype=np.uint64) + 3


def sampler(flow_time: FlowTime = DOWN, num_rows: int = 64, temperature: float = 1.0) -> NftSampler:
    return NftSampler(Nft(STEPS, POINTS, flow_time), SHAPE, field(flow_time), num_rows, temperature)


def chunk_of(tokens: Tensor) -> MatchedChunk:
    return MatchedChunk.from_tokens(tokens, POINTS, SHAPE)


def judged(tokens: Tensor, flow_time: FlowTime = DOWN, velocity_fn: VelocityFn | None = None) -> NftMatching:
    method, velocity_fn = Nft(STEPS, POINTS, flow_time), velocity_fn or field(flow_time)
    inputs = method.flow_input(SHAPE, tokens)
    found = [velocity_fn(x, t, len(x))[0] for x, t in zip(inputs.x.unbind(1), inputs.time.unbind(1), strict=True)]
    return method.evaluate(SHAPE, tokens, FlowOutput(None, None, torch.stack(found, dim=1)), 1.0)


@TIMES
def test_the_velocities_of_acting_and_learning_agree(flow_time: FlowTime) -> None:
    drawn = sampler(flow_time)
    tokens = drawn.sample(keys(64))
    learned = judged(tokens.clone(), flow_time)
    stored = drawn.logprobs(tokens)
    assert stored.shape == drawn.entropy().shape == learned.entropy().shape == (64, 2 * POINTS * 3)
    assert_norm_close(learned.logprobs(tokens), stored, 1e-5)
    matched = learned.flow_matching_terms(tokens)
    assert matched.velocity.shape == (64, 2, POINTS, 3)
    assert_norm_close(matched.velocity, matched.acting, 1e-5)
    assert learned.kl_from_behavior(tokens).max() < 1e-9 and learned.exact_kl(learned.kl_statistic(tokens)).max() == 0
    assert_norm_close(learned.slice_rows(3).logprobs(tokens[:3]), stored[:3], 1e-5)


@TIMES
def test_points_lie_on_the_path_between_the_action_and_standard_normal_noise(flow_time: FlowTime) -> None:
    chunk = chunk_of(sampler(flow_time, 4000).sample(keys(4000)))
    share, executed = chunk.share[..., None], SHAPE.executed(chunk.points)
    # executed = share * noise + (1 - share) * action, and the target is the difference of both
    noise = chunk.action[:, None] - flow_time.sign * chunk.target
    assert_norm_close(share * noise + (1 - share) * chunk.action[:, None], executed, 1e-5)
    assert noise.mean().abs() < 0.02 and abs(float(noise.std()) - 1.0) < 0.02
    assert chunk.share.min() >= 0.001 and chunk.share.max() <= 1.0
    assert float(chunk.share.mean()) == pytest.approx(0.6, abs=0.02), "the mean of Beta(1.5, 1), as in imitation"
    first, second = chunk.share.unbind(1)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.05, "points are independent"


def test_choices_are_in_the_order_of_control_steps() -> None:
    """So that a mask of control steps, repeated over the choices of each, is theirs."""
    tokens = sampler().sample(keys(64))
    learned, chunk = judged(tokens), chunk_of(tokens)
    for step in range(2):
        own = slice(step * POINTS * 3, (step + 1) * POINTS * 3)
        executed = chunk.target.view(64, POINTS, 2, 3)[:, :, step].flatten(1)
        assert torch.equal(learned.flow_matching_terms(tokens).target.flatten(1)[:, own], executed)


@TIMES
def test_the_action_is_the_ode_from_the_drawn_noise(flow_time: FlowTime) -> None:
    drawn, other = sampler(flow_time), sampler(DOWN if flow_time is UP else UP)
    action = chunk_of(drawn.sample(keys(64))).action
    assert_norm_close(action, chunk_of(other.sample(keys(64))).action, 1e-5)
    assert float(action.std(0).mean()) > 0.1, "a drawn noise explores"
    calm = chunk_of(sampler(flow_time, temperature=1e-6).sample(keys(64))).action
    assert float(calm.std(0).max()) < 1e-4
    most_likely = drawn.most_likely()
    assert torch.equal(most_likely, drawn.most_likely()) and most_likely.isfinite().all()
    assert chunk_of(most_likely).action.std(0).max() < 1e-6, "one noise for all rows"


def test_a_row_depends_on_its_own_key_only() -> None:
    whole = sampler().sample(keys(64))
    assert_norm_close(whole[:3], sampler(num_rows=3).sample(keys(3)), 1e-6)
    assert_norm_close(whole[1:], sampler(num_rows=63).sample(keys(64)[1:]), 1e-6)
    assert not torch.equal(whole, sampler().sample(keys(64) + np.uint64(1)))


@TIMES
def test_the_error_is_that_of_imitation_on_the_own_action(flow_time: FlowTime) -> None:
    """`Matching` at the same points and targets."""
    tokens = sampler(flow_time).sample(keys(64))
    chunk, velocity = chunk_of(tokens), torch.randn(64, POINTS, 3, 4, generator=torch.Generator().manual_seed(0))
    matched = NftMatching(SHAPE, POINTS, SHAPE.executed(velocity)).flow_matching_terms(tokens)
    target = torch.zeros(64, POINTS, 3, 4)
    target[:, :, :2, :3] = chunk.target.view(64, POINTS, 2, 3)
    valid = torch.ones(64, 2, dtype=torch.bool)
    whole = [
        Matching(FlowInput(chunk.points[:, i : i + 1], chunk.share[:, i : i + 1]), target[:, i]).loss(
            velocity[:, i], valid, 3
        )
        for i in range(POINTS)
    ]
    assert_norm_close((matched.velocity - matched.target).square().mean(), torch.stack(whole).mean(), 1e-5)


@pytest.mark.parametrize("kind", ["smolvla", "pi05", "gr00t"])
def test_policies_keep_it_in_their_folder(kind: str, tmp_path: Path) -> None:
    own = (f"{section(kind)}.sampling=nft", f"{section(kind)}.num_points=2", f"{section(kind)}.first_noise=drawn")
    run = (*own, "algorithm.name=nft", "algorithm.horizon=22", "algorithm.aggregation=chunk_mean_token_mean")
    policy = new_policy(kind, *run)
    tokens, stored = chosen(policy)
    again = policy.evaluate(*frames(), 1.0, tokens)[0].logprobs(tokens)
    assert again.shape == (ROWS, 2 * 2 * A)
    assert_norm_close(again, stored, 1e-5)
    policy.save(tmp_path)
    opened = open_policy(tmp_path, torch.float32, "cpu", config(kind, *run))
    assert_norm_close(chosen(opened)[0], tokens, 1e-5)  # type: ignore[arg-type]
    assert policy.decode_actions(tokens.numpy()).shape == (ROWS, 2, A)
