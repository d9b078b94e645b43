"""SAC: what it keeps, and its update against formulas written out in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ChunkSteps, UpdateContext
from rlrun.algorithms.off_policy_spec import SacConfig
from rlrun.algorithms.replay_buffer import Transitions
from rlrun.algorithms.sac import Sac, transitions
from rlrun.check_algorithm import _contract
from rlrun.config.loader import load
from rlrun.config.schema import AlgorithmConfig
from rlrun.edges.spaces import Spaces
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.actor_critic.policy import ActorCriticPolicy
from rlrun.system.errors import RunError
from rlrun.testing.off_policy import one_rank
from tests.numerics import assert_norm_close, rounding

P, A, ROWS, WIDTH = 5, 2, 7, 8
MLP = ["policy.kind=mlp", "policy.mlp.distribution=squashed", "policy.mlp.activation=relu"]
SQUASHED = ["run=halfcheetah", *MLP, "policy.mlp.normalize_observations=false"]
EPS = 1e-6  # by which CleanRL keeps the logarithm finite; our log-density needs none
SMALL = {"hidden_sizes": [WIDTH, WIDTH], "batch_size": ROWS, "warmup": 0, "tau": 0.1, "initial_alpha": 0.3}


def new_policy(*overrides: str) -> ActorCriticPolicy:
    run = load([*SQUASHED, f"policy.mlp.hidden_sizes=[{WIDTH},{WIDTH}]", *overrides])
    return ActorCriticPolicy.from_scratch(run, Spaces(A, None, (-2.0,) * A, (2.0,) * A, P, 0))


def algorithm(**own: Any) -> Sac:
    config = AlgorithmConfig()
    config.sections = {"sac": SacConfig(**SMALL | own)}
    return Sac(config)


def drawn(count: int, seed: int = 0) -> Transitions:
    draw = torch.Generator().manual_seed(seed)
    features, following = torch.randn(2, count, P, generator=draw)
    actions = torch.randn(count, A, generator=draw).tanh()
    discounts = torch.where(torch.rand(count, generator=draw) < 0.3, 0.0, 0.9)
    return Transitions(features, actions, torch.randn(count, generator=draw), discounts, following)


# --- CleanRL's sac_continuous_action, written out for single rows ----------------------------------


def perceptron(layers: list[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """Each layer: weight [out, in], bias [out]. x: one row."""
    for weight, bias in layers[:-1]:
        x = (weight @ x + bias).clamp(min=0)
    return layers[-1][0] @ x + layers[-1][1]


def acted(actor: list[tuple[Tensor, Tensor]], state: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Return (action, its log-density); the deviation is bounded by a tanh that is 0 at a deviation of 1."""
    mean, number = perceptron(actor, state).chunk(2)
    low, high = -5.0, 2.0
    log_std = low + 0.5 * (high - low) * ((number + math.atanh((0 - -1.5) / 3.5)).tanh() + 1)
    raw = mean + log_std.exp() * normal
    action = raw.tanh()
    density = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw) - (1 - action**2 + EPS).log()
    return action, density.sum()


class Reference:
    """Networks in float64 with Adam or plain steps, one row at a time."""

    def __init__(self, policy: ActorCriticPolicy, sac: Sac):
        linear = [layer for layer in policy.module.policy if isinstance(layer, torch.nn.Linear)]
        self.actor = [leaves(layer.weight, layer.bias) for layer in linear]
        assert sac.trainer is not None
        self.critics, self.targets = [], []
        for net, kept in ((sac.trainer.critics, self.critics), (sac.trainer.targets, self.targets)):
            for n in range(len(net.weights[0])):
                kept.append([leaves(w[n].T, b[n, 0]) for w, b in zip(net.weights, net.biases, strict=True)])
        self.log_alpha = torch.tensor(math.log(0.3), dtype=torch.float64, requires_grad=True)
        own = sac.settings
        critics = [tensor for critic in self.critics for layer in critic for tensor in layer]
        self._critic_adam = torch.optim.Adam(critics, lr=own.critic_lr)
        self._alpha_adam = torch.optim.Adam([self.log_alpha], lr=own.alpha_lr)
        self._actor_sgd = torch.optim.SGD([tensor for layer in self.actor for tensor in layer], lr=1e-2)
        self._tau, self._target_entropy = own.tau, own.target_entropy * A

    def update(self, batch: Transitions, normals: Tensor) -> dict[str, float]:
        """Take one step as CleanRL does, but that alpha's log-densities are those of the actor's own loss."""
        rows = [tuple(getattr(batch, name)[i].double() for name in batch.__dataclass_fields__) for i in range(ROWS)]
        alpha = float(self.log_alpha.detach().exp())
        losses = []
        for (s, a, r, discount, following), normal in zip(rows, normals[ROWS:].double(), strict=True):
            with torch.no_grad():
                action, density = acted(self.actor, following, normal)
                smallest = min(float(perceptron(target, torch.cat([following, action]))) for target in self.targets)
                wanted = float(r) + float(discount) * (smallest - alpha * float(density))
            losses.append(sum((perceptron(critic, torch.cat([s, a]))[0] - wanted) ** 2 for critic in self.critics))
        critic_loss = torch.stack(losses).mean()
        stepped(self._critic_adam, critic_loss)
        densities, actor_losses = [], []
        for (s, *_), normal in zip(rows, normals[:ROWS].double(), strict=True):
            action, density = acted(self.actor, s, normal)
            value = torch.stack([perceptron(critic, torch.cat([s, action]))[0] for critic in self.critics]).min()
            densities.append(density)
            actor_losses.append(alpha * density - value)
        stepped(self._actor_sgd, torch.stack(actor_losses).mean())
        density = torch.stack(densities).detach().mean()
        stepped(self._alpha_adam, -self.log_alpha.exp() * (density + self._target_entropy))
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for kept, new in zip(flat(target), flat(critic), strict=True):
                    kept.mul_(1 - self._tau).add_(self._tau * new)
        return {"critic_loss": float(critic_loss.detach()) / len(self.critics), "action_entropy": -float(density) / A}


def leaves(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(x.detach().double().clone().requires_grad_() for x in (weight, bias))  # type: ignore[return-value]


def stepped(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def flat(layers: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [tensor for layer in layers for tensor in layer]


def distance(found: list[Tensor], wanted: list[Tensor]) -> float:
    one, other = (torch.cat([x.detach().double().flatten() for x in tensors]) for tensors in (found, wanted))
    return float((one - other).norm() / other.norm())


def test_updates_are_those_of_cleanrl() -> None:
    """Three steps: critics by Adam, then the actor through the new critics, then alpha, then the targets."""
    sac, context = algorithm(critic_lr=1e-2, alpha_lr=1e-2, num_critics=2), one_rank(new_policy())
    batch = drawn(40)
    sac.replay.add(batch)
    trainer = sac.trainer_for(batch, context)
    reference = Reference(context.policy, sac)
    draw = torch.Generator()
    for seed in range(3):
        context.random.manual_seed(seed)
        draw.manual_seed(seed)
        found = sac.step(context, trainer)
        rows = sac.replay.sample(ROWS, draw)
        wanted = reference.update(rows, torch.randn(2 * ROWS, A, generator=draw))
        for name, number in wanted.items():
            assert float(found[name]) == pytest.approx(number, rel=1e-4), name
    linear = [layer for layer in context.policy.module.policy if isinstance(layer, torch.nn.Linear)]
    assert distance([t for layer in linear for t in (layer.weight, layer.bias)], flat_all([reference.actor])) < 1e-5
    for net, kept in ((trainer.critics, reference.critics), (trainer.targets, reference.targets)):
        layers = list(zip(net.weights, net.biases, strict=True))
        own = [t for n in range(2) for weight, bias in layers for t in (weight[n].T, bias[n, 0])]
        assert distance(own, flat_all(kept)) < 1e-5
    assert float(trainer.log_alpha.detach()) == pytest.approx(float(reference.log_alpha.detach()), abs=1e-6)


def test_one_rank_averages_no_gradients() -> None:
    sac, context = algorithm(), one_rank(new_policy())
    context.sum = lambda _: pytest.fail("a rank alone has nobody to sum with")
    batch = drawn(40)
    sac.replay.add(batch)
    sac.step(context, sac.trainer_for(batch, context))


def flat_all(nets: list[list[tuple[Tensor, Tensor]]]) -> list[Tensor]:
    return [tensor for net in nets for tensor in flat(net)]


# --- what it keeps, and how often it steps ---------------------------------------------------------


def chunk_steps(**changes: Tensor) -> ChunkSteps:
    """Two chunk steps of three rows; one terminated, one was cut off, one is void."""
    no = torch.zeros(2, 3, dtype=torch.bool)
    zeros = torch.zeros(2, 3)
    terminated, truncated, valid = no.clone(), no.clone(), ~no
    terminated[0, 0], truncated[0, 1], valid[1, 2] = True, True, False
    known = {"terminated": terminated, "truncated": truncated, "valid": valid, "goes_on": no}
    known |= {"rewards": torch.arange(6.0).view(2, 3), "discount": torch.full((2, 3), 0.9), "values": zeros}
    return ChunkSteps(next_values=zeros, group=torch.zeros(3, dtype=torch.int32), horizon=2, **(known | changes))


def test_a_time_limit_bootstraps_from_the_last_observation() -> None:
    proprio = np.arange(2 * 3 * P, dtype=np.float32).reshape(2, 3, P)
    held = SimpleNamespace(proprio=proprio, next_proprio=100 + proprio, tokens=np.zeros((2, 3, A), np.float32))
    found = transitions(chunk_steps(), cast("Trajectory", held), new_policy())
    assert found.rewards.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]  # all but the void one
    assert found.discounts.tolist() == pytest.approx([0.0, 0.9, 0.9, 0.9, 0.9])
    assert np.array_equal(found.next_features.numpy(), (100 + proprio).reshape(6, P)[:5])


@pytest.mark.parametrize(("ratio", "critic_steps"), [(1.0, 1), (0.3, 1), (20.0, 20), (1.0, 4)])
def test_steps_follow_the_transitions_without_rounding_any_away(ratio: float, critic_steps: int) -> None:
    sac = algorithm(update_ratio=ratio, critic_steps=critic_steps, warmup=10)
    context, trainer = cast("UpdateContext", None), SimpleNamespace(num_collected=torch.tensor(0.0))
    total = 0
    for num_new in (4, 1, 3, 7, 1, 1, 16, 2):
        steps = sac.num_steps(num_new, cast("Any", trainer), context)
        trainer.num_collected += num_new
        total += steps
        assert trainer.num_collected > 10 or not steps
    assert total == math.floor((35 - 10) * ratio / critic_steps)


def test_actions_of_the_simulator_become_choices_and_back() -> None:
    policy = new_policy()
    tokens = torch.randn(6, A)
    actions = policy.decode_actions(tokens.numpy())
    assert np.abs(actions).max() <= 2.0
    assert_norm_close(policy.scale(actions), policy.squash(tokens), rounding(1))


@pytest.mark.parametrize("normalized", ["true", "false"])
def test_it_keeps_the_contract_with_a_real_policy(normalized: str) -> None:
    own = ["algorithm.name=sac", "algorithm.sac.warmup=20", "algorithm.sac.hidden_sizes=[16]"]
    small = [*own, "algorithm.sac.update_ratio=0.02", "policy.mlp.hidden_sizes=[16]"]
    config = load([*SQUASHED, *small, f"policy.mlp.normalize_observations={normalized}"])
    assert _contract(config).breaches() == []


@pytest.mark.parametrize(
    ("overrides", "cause", "remedy"),
    [
        ([], "policy.kind=openvla_oft", "policy.kind=mlp"),
        (["policy=smolvla"], "policy.kind=smolvla", "policy.kind=mlp"),
        (["run=halfcheetah"], "policy.mlp.distribution=normal", "policy.mlp.distribution=squashed"),
        (["run=halfcheetah", "policy.kind=cnn"], "observes pictures", "policy.kind=mlp"),
    ],
)
def test_a_policy_without_such_actions_is_refused(overrides: list[str], cause: str, remedy: str) -> None:
    with pytest.raises(RunError, match="has no such actions") as refused:
        load([*overrides, "algorithm.name=sac"])
    assert cause in str(refused.value.cause) and remedy in str(refused.value.remedy)


def test_discrete_actions_are_refused_before_anything_is_collected() -> None:
    with pytest.raises(RunError, match="discrete"):
        ActorCriticPolicy.from_scratch(load(SQUASHED), Spaces(1, 3, (0.0,), (2.0,), P, 0))
