"""DSRL's soft actor-critic: what it keeps, what its critics learn, where it moves the noise."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from rlrun.algorithms.algorithm import ChunkSteps, UpdateContext
from rlrun.algorithms.dsrl import Dsrl, transitions
from rlrun.algorithms.off_policy_spec import DsrlConfig
from rlrun.check_algorithm import _contract
from rlrun.config.loader import load
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import AlgorithmConfig
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.flow.dsrl import NoiseAction, NoiseDistribution
from rlrun.policies.flow.method import ChunkShape
from rlrun.policies.flow.model import NoiseActor
from rlrun.system.errors import RunError
from rlrun.testing.off_policy import OffPolicyContract, SampledPolicy, one_rank, weights

WIDTH, A = 4, 2
SHAPE = ChunkShape(num_steps=1, num_dims=A, num_executed=1, num_actions=A)


class Toy:
    """A steered policy of which only the noise counts."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.module: nn.Module = NoiseActor(WIDTH, [32], A)

    def steered(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        choice = NoiseAction.from_tokens(tokens, SHAPE)
        return choice.summary, choice.raw.tanh()

    def steer(self, seen: Tensor) -> NoiseDistribution:
        return NoiseDistribution(SHAPE, *self.module(seen), 1.0)


def algorithm(**own: Any) -> Dsrl:
    config = AlgorithmConfig()
    config.sections = {"dsrl": DsrlConfig(**{"num_updates": 50, "warmup_steps": 0, "batch_size": 64} | own)}
    return Dsrl(config)


def steps_of(rewards: Tensor, terminated: Tensor, **changes: Tensor) -> ChunkSteps:
    """Return chunk steps [T, B], all valid; an episode goes on until it terminated, at most to the end."""
    goes_on = ~terminated
    goes_on[-1] = False
    zeros, no = torch.zeros_like(rewards), torch.zeros_like(terminated)
    known = {"truncated": no, "goes_on": goes_on, "valid": ~no, "discount": torch.full_like(rewards, 0.5)} | changes
    group = torch.zeros(rewards.shape[1], dtype=torch.int32)
    return ChunkSteps(
        rewards=rewards, values=zeros, next_values=zeros, terminated=terminated, group=group, horizon=9, **known
    )


def tokens_of(seen: Tensor, raw: Tensor) -> Tensor:
    """Return tokens [T, B, ...] of what was seen [T, B, WIDTH], and of numbers before tanh [T, B, A]."""
    flat = NoiseAction(seen.flatten(0, 1), raw.flatten(0, 1), torch.zeros(seen.shape[0] * seen.shape[1], A))
    return flat.to_tokens().unflatten(0, seen.shape[:2])


def update(dsrl: Dsrl, context: UpdateContext, steps: ChunkSteps, tokens: Tensor) -> dict[str, float]:
    context.random.manual_seed(context.num_updates)
    metrics = dsrl.update(steps, cast("Trajectory", SimpleNamespace(tokens=tokens.numpy())), context)
    context.num_updates += 1
    return metrics


def test_only_chunk_steps_with_a_known_future_are_kept() -> None:
    seen = torch.arange(3 * 2 * WIDTH).float().view(3, 2, WIDTH)
    terminated = torch.tensor([[False, False], [True, False], [False, False]])
    valid = torch.tensor([[True, True], [True, True], [True, False]])
    goes_on = torch.tensor([[True, True], [False, False], [False, False]])  # row 1 was cut off by the time limit
    rewards = torch.arange(6).float().view(3, 2)
    steps = steps_of(rewards, terminated, valid=valid, goes_on=goes_on)
    raw = torch.zeros(3, 2, A)
    found = transitions(steps, tokens_of(seen, raw), Toy())
    assert found.rewards.tolist() == [0.0, 1.0, 2.0]
    assert found.discounts.tolist() == [0.5, 0.5, 0.0]
    assert torch.equal(found.features, torch.stack([seen[0, 0], seen[0, 1], seen[1, 0]]))
    assert torch.equal(found.next_features[:2], torch.stack([seen[1, 0], seen[1, 1]]))


def test_critics_learn_what_follows() -> None:
    """Two chunk steps: the second one earns 1; with a discount of 0.5 the first is worth 0.5, whatever the entropy."""
    dsrl = algorithm(num_updates=600, initial_alpha=1.0, alpha_lr=0.0, tau=0.05, critic_lr=1e-3)
    context, draw = one_rank(Toy()), torch.Generator().manual_seed(0)
    seen = torch.zeros(2, 64, WIDTH)
    seen[0, :, 0], seen[1, :, 1] = 1.0, 1.0
    rewards, terminated = torch.zeros(2, 64), torch.zeros(2, 64, dtype=torch.bool)
    rewards[1], terminated[1] = 1.0, True
    update(dsrl, context, steps_of(rewards, terminated), tokens_of(seen, torch.randn(2, 64, A, generator=draw)))
    assert dsrl.trainer is not None
    noise = torch.zeros(1, A)
    values = [float(dsrl.trainer.critics(seen[step, :1], noise).detach().mean()) for step in (0, 1)]
    assert values == pytest.approx([0.5, 1.0], abs=0.1)


def test_the_noise_moves_to_where_rewards_are() -> None:
    """What was seen says which noise is right; the reward falls with the distance from it."""
    dsrl, context = algorithm(num_updates=100, initial_alpha=0.02, target_entropy=-2.0), one_rank(Toy())
    context._optimizer = torch.optim.Adam(context.policy.module.parameters(), lr=3e-3)  # type: ignore[assignment]
    draw = torch.Generator().manual_seed(0)
    seen = torch.eye(WIDTH).repeat(64, 1)[None]
    right = torch.tensor([[0.6, -0.6], [-0.6, 0.6], [0.5, 0.5], [-0.5, -0.5]]).repeat(64, 1)

    def distance() -> float:
        return float((context.policy.steer(seen[0]).mean.detach().tanh() - right).norm(dim=1).mean())

    before = distance()
    for _ in range(8):
        with torch.no_grad():
            own = context.policy.steer(seen[0])
            raw = own.mean + own.log_std.exp() * torch.randn(own.mean.shape, generator=draw)
        rewards = -(raw.tanh() - right).square().sum(1)[None]
        metrics = update(
            dsrl, context, steps_of(rewards, torch.ones_like(rewards, dtype=torch.bool)), tokens_of(seen, raw[None])
        )
    assert distance() < 0.35 < before
    assert metrics["num_nonfinite"] == 0


@pytest.mark.parametrize(("target", "rises"), [(0.6, True), (-2.0, False)])
def test_the_weight_of_the_entropy_follows_its_target(target: float, rises: bool) -> None:
    dsrl, context = algorithm(target_entropy=target, alpha_lr=1e-2), one_rank(Toy())
    draw = torch.Generator().manual_seed(0)
    seen, raw = torch.randn(1, 32, WIDTH, generator=draw), torch.randn(1, 32, A, generator=draw)
    rewards = torch.zeros(1, 32)
    steps = steps_of(rewards, torch.ones_like(rewards, dtype=torch.bool))
    first, last = (update(dsrl, context, steps, tokens_of(seen, raw))["alpha"] for _ in range(2))
    assert (last > first) is rises


def test_it_only_collects_at_first() -> None:
    dsrl, context = algorithm(warmup_steps=1), one_rank(Toy())
    seen, rewards = torch.zeros(1, 8, WIDTH), torch.zeros(1, 8)
    steps, before = steps_of(rewards, torch.ones(1, 8, dtype=torch.bool)), weights(context)
    assert update(dsrl, context, steps, tokens_of(seen, torch.zeros(1, 8, A)))["num_optimizer_steps"] == 0
    assert torch.equal(before, weights(context))
    assert update(dsrl, context, steps, tokens_of(seen, torch.zeros(1, 8, A)))["num_optimizer_steps"] == 50


def test_it_keeps_the_contract_with_a_real_policy() -> None:
    small = ["algorithm.dsrl.num_updates=3", "algorithm.dsrl.hidden_sizes=[32]", "algorithm.dsrl.batch_size=32"]
    config = load(["policy=smolvla_dsrl", "env.image_size=32", "policy.smolvla.patch_size=8", *small])
    assert _contract(config).breaches() == []


def forgetful(dsrl: Dsrl) -> Dsrl:
    dsrl.state_dict = dict  # type: ignore[method-assign]
    return dsrl


def trusting(dsrl: Dsrl) -> Dsrl:
    learn = dsrl.update

    def update(steps, trajectory, context):  # it believes rewards of invalid chunk steps
        metrics = learn(steps, trajectory, context)
        with torch.no_grad():
            next(context.policy.module.parameters()).add_(steps.rewards.sum().nan_to_num(1e3) * 1e-3)
        return metrics

    dsrl.update = update  # type: ignore[method-assign]
    return dsrl


def idle(dsrl: Dsrl) -> Dsrl:
    dsrl.update = lambda *_: {"num_optimizer_steps": 0.0, "num_nonfinite": 0.0}  # type: ignore[method-assign]
    return dsrl


BROKEN = {
    "its state dict lacks something": forgetful,
    "what invalid chunk steps hold changes the policy": trusting,
    "it took no optimizer step": idle,
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_algorithm_is_named_by_what_is_wrong(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(["policy=smolvla_dsrl"])
    draw = torch.Generator().manual_seed(0)
    tokens = tokens_of(torch.randn(1, 6, WIDTH, generator=draw), torch.randn(1, 6, A, generator=draw))[0]
    contract = OffPolicyContract(ALGORITHMS.get("dsrl"), config, SampledPolicy(Toy, tokens))
    break_it: Callable[[Dsrl], Dsrl] = BROKEN[what]
    monkeypatch.setattr(contract, "make", lambda: break_it(algorithm(num_updates=2)))
    assert any(what in breach.what for breach in contract.breaches())


def test_a_policy_that_chooses_no_noise_is_refused() -> None:
    with pytest.raises(RunError, match="this policy chooses none") as refused:
        load(["policy=smolvla", "algorithm.name=dsrl"])
    assert "policy.smolvla.sampling=flow_sde" in str(refused.value.cause)
