"""NFT's loss against its definition, written as a loop in float64; and what it does to a flow of two modes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlrun.actor.learning_batch import LearningBatch, learning_batch
from rlrun.algorithms.advantages import Reduce, balanced, on_one_rank
from rlrun.algorithms.algorithm import (
    ActionDistribution,
    Advantages,
    ChunkSteps,
    MatchedVelocities,
    Outputs,
    Reduction,
    Targets,
)
from rlrun.algorithms.nft import Nft, goodness
from rlrun.algorithms.spec import NftConfig
from rlrun.config.loader import load
from rlrun.config.schema import Aggregation, AlgorithmConfig
from rlrun.policies.flow.method import ChunkShape
from rlrun.policies.flow.model import FlowOutput, Matching
from rlrun.policies.flow.nft import MatchedChunk, NftMatching, NftSampler
from rlrun.policies.flow.nft import Nft as NftMethod
from rlrun.policies.flow.time import NOISE_AT_ONE, NOISE_AT_ZERO, FlowTime
from rlrun.system.errors import RunError
from tests.numerics import assert_norm_close
from tests.unit.actor.tiny_run import trajectory
from tests.unit.algorithms.test_reinforce import HORIZON, episodes, steps

M, C, F, A = 6, 2, 3, 4


def algorithm(**settings: object) -> Nft:
    config = AlgorithmConfig(name="nft")
    config.sections = {"nft": NftConfig(**settings)}  # type: ignore[arg-type]
    return Nft(config)


class Given(ActionDistribution):
    """A distribution of given velocities."""

    def __init__(self, found: MatchedVelocities):
        self.found = found

    def sample(self, keys: np.ndarray) -> Tensor:
        raise NotImplementedError

    def most_likely(self) -> Tensor:
        raise NotImplementedError

    def logprobs(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError

    def entropy(self) -> Tensor:
        raise NotImplementedError

    def flow_matching_terms(self, tokens: Tensor) -> MatchedVelocities:
        return self.found

    def slice_rows(self, num_rows: int) -> Given:
        raise NotImplementedError


def given(seed: int = 0) -> tuple[MatchedVelocities, Targets]:
    random = torch.Generator().manual_seed(seed)
    velocity, acting, target = (torch.randn(M, C, F, A, generator=random) for _ in range(3))
    mask = torch.ones(M, C, F, A, dtype=torch.bool)
    mask[1, 1:] = False  # the episode ended after the first control step
    mask[4] = False  # the row does not count
    advantages = 2.0 * torch.randn(M, generator=random)
    zeros = torch.zeros(M)
    flat = mask.flatten(1)
    targets = Targets(zeros, flat, flat, flat.float(), advantages, zeros, zeros, mask.flatten(1).any(1))
    return MatchedVelocities(velocity, acting, target, torch.rand(M, F, generator=random)), targets


def loss_of(nft: Nft, found: MatchedVelocities, targets: Targets) -> Tensor:
    nothing = torch.zeros(M, C * F * A)
    losses = nft.loss(Outputs(Given(found), nothing, nothing, None), targets)
    (term,) = losses.terms
    return term.mean * term.coefficient


def loop(found: MatchedVelocities, targets: Targets, own: NftConfig) -> tuple[float, np.ndarray]:
    """Return the loss and its gradient by the velocity, in float64."""
    velocity, acting, target, share = (x.double().numpy() for x in (*_arrays(found), found.share))
    mask = targets.token_mask.view(M, C, F, A).numpy()
    gradient, total = np.zeros_like(velocity), 0.0
    for m in range(M):
        r = min(1.0, max(0.0, 0.5 + 0.5 * float(targets.advantages[m]) / own.advantage_clip))
        for f in range(F):
            valid = [(c, a) for c in range(C) for a in range(A) if mask[m, c, f, a]]
            for weight, sign in ((r, 1.0), (1.0 - r, -1.0)):
                errors = {}
                for c, a in valid:
                    implicit = acting[m, c, f, a] + sign * own.beta * (velocity[m, c, f, a] - acting[m, c, f, a])
                    errors[c, a] = implicit - target[m, c, f, a]
                factor = share[m, f] if own.adaptive_weighting else 1.0
                size = 1.0
                if own.adaptive_weighting and errors:
                    size = max(1e-5, float(np.mean([abs(factor * error) for error in errors.values()])))
                for (c, a), error in errors.items():
                    scale = weight * own.advantage_clip / own.beta * factor**2 / size
                    total += scale * error**2
                    gradient[m, c, f, a] += 2.0 * scale * error * sign * own.beta
    return total / mask.sum(), gradient / mask.sum()


def _arrays(found: MatchedVelocities) -> tuple[Tensor, Tensor, Tensor]:
    return found.velocity.detach(), found.acting, found.target


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize(("beta", "clip"), [(1.0, 5.0), (0.1, 1.0), (2.0, 1.5)])
def test_loss_and_gradient_against_a_loop(adaptive: bool, beta: float, clip: float) -> None:
    nft = algorithm(beta=beta, advantage_clip=clip, adaptive_weighting=adaptive)
    found, targets = given()
    found.velocity.requires_grad_()
    loss = loss_of(nft, found, targets)
    loss.backward()
    expected, gradient = loop(found, targets, nft.config.section(NftConfig))
    assert_norm_close(float(loss.detach()), expected, 1e-5)
    assert found.velocity.grad is not None
    assert_norm_close(found.velocity.grad, gradient, 1e-5)


def test_masked_entries_may_be_nan() -> None:
    found, targets = given()
    mask = targets.token_mask.view(M, C, F, A)
    clean = loss_of(algorithm(), found, targets)
    spoiled = [torch.where(mask, x, torch.nan).requires_grad_() for x in _arrays(found)]
    share = torch.where(targets.row_mask[:, None], found.share, torch.nan)
    targets.advantages[~targets.row_mask] = torch.nan
    dirty = loss_of(algorithm(), MatchedVelocities(*spoiled, share), targets)
    dirty.backward()
    assert torch.equal(clean, dirty) and spoiled[0].grad is not None
    assert spoiled[0].grad.isfinite().all() and not spoiled[0].grad[~mask].any()


def test_wholly_good_actions_are_imitated() -> None:
    """r = 1 and beta = 1: the loss is that of flow matching on the own actions."""
    found, targets = given()
    targets.advantages[:] = 9.0
    nft = algorithm(beta=1.0, advantage_clip=1.0, adaptive_weighting=False)
    squares = (found.velocity - found.target).square().flatten(1)
    assert_norm_close(loss_of(nft, found, targets), squares[targets.token_mask].mean(), 1e-6)


def test_at_the_policy_that_acted_the_gradient_is_that_of_the_advantages() -> None:
    """Whatever beta and clip are, if they clip nothing: the advantage times flow matching's gradient."""
    found, targets = given()
    gradients = []
    for beta, clip in ((1.0, 8.0), (0.1, 20.0)):
        velocity = found.acting.clone().requires_grad_()
        own = MatchedVelocities(velocity, found.acting, found.target, found.share)
        loss_of(algorithm(beta=beta, advantage_clip=clip, adaptive_weighting=False), own, targets).backward()
        gradients.append(velocity.grad)
    mask = targets.token_mask.view(M, C, F, A)
    wanted = 2.0 * targets.advantages[:, None, None, None] * (found.acting - found.target) / mask.sum()
    for gradient in gradients:
        assert gradient is not None
        assert_norm_close(gradient, torch.where(mask, wanted, 0.0), 1e-4)


def test_advantages_compare_returns_at_the_same_time_within_a_group() -> None:
    """Against a loop: of mean 0 at each time, and deviation 1 by chunk steps, in each group and rollout epoch."""
    steps_given = steps(num_dropped=1)
    found = algorithm().advantages(replace(steps_given, group=steps_given.group.int()), on_one_rank)
    wanted = np.zeros(steps_given.rewards.shape)
    by_group: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
    for epoch, row, times in episodes(steps_given):
        if times:
            by_group.setdefault((epoch, int(steps_given.group[row])), []).append((row, times))
    for members in by_group.values():
        returns = {}
        for row, times in members:
            following = 0.0
            for t in reversed(times):
                following = float(steps_given.rewards[t, row]) + float(steps_given.discount[t, row]) * following
                returns[t, row] = following
        centred = {}
        for (t, row), value in returns.items():
            others = [one for (time, _), one in returns.items() if time == t]
            centred[t, row] = value - np.mean(others)
        deviation = np.sqrt(np.mean(np.square(list(centred.values()))))
        for place, value in centred.items():
            wanted[place] = value / (deviation + 1e-6)
    assert len(by_group) == 4 and found.mask.sum() == sum(len(times) for one in by_group.values() for _, times in one)
    assert_norm_close(found.advantages, wanted, 1e-5)
    assert not found.advantages[~found.mask].any()


def test_times_that_only_failures_reach_neither_attract_nor_repel() -> None:
    """Three of four episodes succeed, after two chunk steps; the failure goes on alone."""
    ended = torch.zeros(HORIZON, 4, dtype=torch.bool)
    ended[1, :3] = ended[-1, 3] = True
    rewards, nothing = torch.where(ended & (torch.arange(4) < 3), 1.0, 0.0), torch.zeros(HORIZON, 4)
    given_steps = ChunkSteps(
        rewards=rewards,
        values=nothing,
        next_values=nothing,
        discount=torch.full((HORIZON, 4), 0.9),
        terminated=ended,
        truncated=torch.zeros_like(ended),
        goes_on=torch.zeros_like(ended),
        valid=ended.flip(0).cumsum(0).flip(0) > 0,
        group=torch.zeros(4, dtype=torch.int64),
        horizon=HORIZON,
    )
    found = algorithm().advantages(given_steps, on_one_rank).advantages
    assert (found[:2, :3] > 0).all() and (found[:2, 3] < 0).all() and not found[2:].any()


def test_an_episode_alone_in_its_group_has_no_advantage() -> None:
    given_steps = steps(num_dropped=3)
    found = algorithm().advantages(given_steps, on_one_rank)
    assert not found.advantages[:HORIZON, :4].any() and found.advantages[:HORIZON, 4:].any()


def batch_of(sizes: np.ndarray, advantages: np.ndarray, reduce: Reduce, **own: object) -> LearningBatch:
    """Return a batch of given advantages. sizes: int [T, B], control steps of each chunk step that were executed."""

    class Shifted(Nft):
        def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
            found = torch.tensor(advantages, dtype=torch.float32)
            return Advantages(found, steps.valid, found)

    config = AlgorithmConfig(name="nft", horizon=len(sizes), aggregation=Aggregation.chunk_mean_token_mean)
    config.sections = {"nft": NftConfig(**own)}  # type: ignore[arg-type]
    seen = trajectory()
    executed = np.arange(seen.step_valid.shape[-1]) < sizes[..., None]
    return learning_batch(replace(seen, step_valid=executed, valid=sizes > 0), Shifted(config), reduce)


@pytest.mark.parametrize("shift", [-0.1, 0.0, 0.3])
def test_no_constant_shifts_what_the_loss_weighs(shift: float) -> None:
    """Over two ranks: a constant below 0 would let the error on the own actions grow in every update."""
    shape, random = trajectory().valid.shape, np.random.default_rng(3)
    ranks = [(random.integers(0, 3, shape), random.normal(size=shape) + shift) for _ in range(2)]
    sums: list[Tensor] = []

    def noted(x: Tensor) -> Tensor:
        sums.append(x)
        return x

    for sizes, advantages in ranks:
        batch_of(sizes, advantages, noted, advantage_clip=1.0)
    total = sums[0] + sums[1]
    weighed, weights = 0.0, 0.0
    for sizes, advantages in ranks:
        batch = batch_of(sizes, advantages, lambda x: total, advantage_clip=1.0)
        kept = batch.advantages[batch.row_mask]
        given_signs = np.sign(advantages.flatten()[batch.row_mask.numpy()])
        assert np.array_equal(np.sign(kept.numpy()), given_signs) and kept.abs().max() <= 1.0
        weighed += float(kept.double().sum())
        weights += len(kept)
        assert torch.equal(batch.raw_advantages.view(shape), torch.tensor(advantages, dtype=torch.float32))
    assert weights > 20 and abs(weighed / weights) < 1e-7


def test_balanced() -> None:
    x, weights = torch.tensor([3.0, -1.0, -1.0, torch.nan]), torch.tensor([1.0, 1.0, 1.0, 0.0]).double()
    assert balanced(x, weights).tolist() == [2.0, -1.0, -1.0, 0.0]
    assert balanced(torch.tensor([-1.0, -2.0]), weights[:2]).tolist() == [0.0, 0.0]
    assert balanced(torch.tensor([1.0, -1.0]), torch.tensor([1.0, 4.0]).double()).tolist() == [1.0, -0.25]


def test_the_own_flow_error_is_not_divided_by_its_size() -> None:
    found, targets = given()
    far = replace(found, velocity=found.target + 10.0 * (found.velocity - found.target))
    nothing = torch.zeros(M, C * F * A)
    errors = []
    for one in (found, far):
        losses = algorithm().loss(Outputs(Given(one), nothing, nothing, None), targets)
        errors.append(losses.metrics[Reduction.tokens]["own_flow_error"])
    squares = (found.velocity - found.target).square().flatten(1)
    assert_norm_close(errors[0], squares[targets.token_mask].mean(), 1e-6)
    assert_norm_close(errors[1], 100.0 * errors[0], 1e-5)


def test_goodness() -> None:
    assert goodness(torch.tensor([-9.0, -5.0, 0.0, 2.5, 50.0]), 5.0).tolist() == [0.0, 0.0, 0.5, 0.75, 1.0]


# --- a flow of two modes ----------------------------------------------------------------------

SHAPE, METHOD_STEPS, POINTS, ROWS = ChunkShape(1, 1, 1, 1), 8, 4, 256


class Field(nn.Module):
    """The velocity of a flow of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.layers(torch.cat([x.flatten(1), time[:, None]], dim=1))[..., None]


def imitate(net: Field, flow_time: FlowTime) -> None:
    """Train on actions near 1 and near -1, as many of each; the first ones are better."""
    optimizer, random = torch.optim.Adam(net.parameters(), lr=3e-3), torch.Generator().manual_seed(1)
    for count in range(600):
        modes = torch.randint(0, 2, (ROWS, 1, 1), generator=random) * 2.0 - 1.0
        matching = Matching.sample(modes + 0.1 * torch.randn(modes.shape, generator=random), count, flow_time)
        optimizer.zero_grad()
        velocity = net(matching.flow_input.x[:, 0], matching.flow_input.time[:, 0])
        matching.loss(velocity, torch.ones(ROWS, 1, dtype=torch.bool), 1).backward()
        optimizer.step()


@pytest.mark.parametrize("flow_time", [NOISE_AT_ONE, NOISE_AT_ZERO], ids=["down", "up"])
def test_the_better_of_two_modes_wins(flow_time: FlowTime) -> None:
    torch.manual_seed(0)
    net, method, nft = Field(), NftMethod(METHOD_STEPS, POINTS, flow_time), algorithm()
    imitate(net, flow_time)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    @torch.no_grad()
    def act(step: int) -> Tensor:
        drawn = NftSampler(method, SHAPE, lambda x, time, num_rows: (net(x, time), None), ROWS, 1.0)
        return drawn.sample(np.arange(ROWS, dtype=np.uint64) + np.uint64(step * ROWS))

    def is_good(tokens: Tensor) -> Tensor:
        action = MatchedChunk.from_tokens(tokens, POINTS, SHAPE).action[:, 0]
        return ((action - 1.0).abs() < 0.5).float()

    def share_of_good(tokens: Tensor) -> float:
        return float(is_good(tokens).mean())

    shares = [share_of_good(act(0))]
    for step in range(40):
        tokens = act(step + 1)
        good = is_good(tokens)
        advantages = (good - good.mean()) / (good.std() + 1e-6)
        for _ in range(2):
            inputs = method.flow_input(SHAPE, tokens)
            parts = zip(inputs.x.unbind(1), inputs.time.unbind(1), strict=True)
            velocity = torch.stack([net(x, time) for x, time in parts], dim=1)
            distribution = method.evaluate(SHAPE, tokens, FlowOutput(None, None, velocity), 1.0)
            assert isinstance(distribution, NftMatching)
            mask, zeros = torch.ones(ROWS, POINTS, dtype=torch.bool), torch.zeros(ROWS)
            targets = Targets(tokens, mask, mask, mask.float(), advantages, zeros, zeros, mask[:, 0])
            (term,) = nft.loss(Outputs(distribution, mask.float(), mask.float(), None), targets).terms
            optimizer.zero_grad()
            term.mean.backward()
            optimizer.step()
        shares.append(share_of_good(tokens))
    assert 0.35 < shares[0] < 0.6 and shares[-1] > 0.9, shares


UNFILTERED = ["policy=smolvla_nft", "algorithm.filter_groups.enable=false"]


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        (["policy.kind=cnn", "algorithm.name=nft"], "algorithm.name", "policy.kind=cnn"),
        (["policy.kind=openvla_oft", "algorithm.name=nft"], "algorithm.name", "Take algorithm.name=ppo, which"),
        (["policy=smolvla", "algorithm.name=nft"], "algorithm.name", "policy.smolvla.sampling=flow_sde"),
        (["policy=smolvla_nft", "policy.smolvla.first_noise=fixed"], "policy.smolvla.first_noise", "is an ODE"),
        ([*UNFILTERED, "algorithm.name=ppo"], "algorithm.name", "no log-probabilities"),
        ([*UNFILTERED, "algorithm.nft.group_size=1"], "algorithm.nft.group_size", "at least 2 envs"),
        (["policy=smolvla_nft", "algorithm.aggregation=token_mean"], "algorithm.aggregation", "weigh chunk steps"),
        (["policy=pi0_nft", "algorithm.aggregation=chunk_mean_token_sum"], "algorithm.aggregation", "mean_token_mean"),
        *(
            ([f"policy={file}", f"algorithm.name={name}"], "algorithm.name", f"Take policy={file}_{name}.")
            for file in ("smolvla", "pi0", "pi05", "gr00t")
            for name in ("nft", "dsrl")
        ),
        (["policy.kind=cnn", "algorithm.name=dsrl"], "algorithm.name", "Take algorithm.name=ppo, which"),
        (["policy=gr00t", "algorithm.name=sac"], "algorithm.name", "steer it: Take policy=gr00t_dsrl."),
        (["policy.kind=openvla_oft", "algorithm.name=sac"], "algorithm.name", "Take algorithm.name=ppo, which"),
    ],
)
def test_what_it_cannot_train_is_refused(keys: list[str], key: str, words: str) -> None:
    with pytest.raises(RunError) as refused:
        load(keys)
    assert refused.value.key == key and words in str(refused.value)


def remedies(keys: list[str]) -> dict[str | None, str | None]:
    """The remedies of a configuration's faults by their keys."""
    try:
        load(keys)
    except RunError as error:
        return {fault.key: fault.remedy for fault in getattr(error, "errors", [error])}
    return {}


@pytest.mark.parametrize("name", ["nft", "dsrl"])
def test_a_flow_policy_of_one_s_own_is_told_its_own_keys(name: str, tmp_path: Path, monkeypatch) -> None:
    """No file is shipped for it, and its section has the name of its spec, not the one by which it is chosen."""
    module = tmp_path / f"own_{name}.py"
    module.write_text(
        "from dataclasses import replace\nfrom rlrun.policies.smolvla.spec import SPEC as FLOW\n"
        "SPEC = replace(FLOW, name='mine', shipped_as=lambda config: None)\n"
    )
    monkeypatch.chdir(tmp_path)
    keys = [f"policy.kind=own_{name}:SPEC", f"algorithm.name={name}"]
    remedy = {"nft": "policy.mine.sampling=nft policy.mine.first_noise=drawn", "dsrl": "policy.mine.sampling=dsrl"}
    assert remedies(keys)["algorithm.name"] == f"Set {remedy[name]}."
    assert "algorithm.name" not in remedies([*keys, *remedy[name].split()])
