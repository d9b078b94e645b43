"""The contract of off-policy algorithms, as a suite of checks: `rlrun check-algorithm NAME`.

Shape legend: T chunk steps, B rows (envs).
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from rlrun.algorithms.algorithm import ChunkSteps, DemonstratedSteps, OffPolicyAlgorithm, UpdateContext
from rlrun.algorithms.spec import AlgorithmSpec
from rlrun.config.schema import RunConfig
from rlrun.edges.trajectories import Trajectory
from rlrun.testing import Breach, broken
from rlrun.testing.algorithms import ROWS, fake_steps

MAX_STEPS = 20  # training steps until an algorithm must have learned


@dataclass(frozen=True)
class SampledPolicy:
    """A policy for the algorithm, and actions sampled from it."""

    begin: Callable[[], Any]  # returns a new policy, always with the same weights
    tokens: Tensor  # [N, ...], sampled actions
    num_proprio: int = 0  # P


def one_rank(policy: Any) -> UpdateContext:
    """Return the context of a single rank, without a process group."""
    trained = [parameter for parameter in policy.module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-2)

    def step(loss: Tensor) -> bool:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return True

    return UpdateContext(
        policy, torch.device("cpu"), 0, torch.Generator(), 1, step, lambda x: x.detach().clone(), lambda flag: flag
    )


def weights(context: UpdateContext) -> Tensor:
    """Return all weights of the policy in one tensor."""
    return torch.cat([parameter.detach().flatten() for parameter in context.policy.module.parameters()])


class OffPolicyContract:
    """Checks an off-policy algorithm with made-up chunk steps and a real policy."""

    def __init__(self, spec: AlgorithmSpec, config: RunConfig, acted: SampledPolicy):
        self.spec = spec
        self.config = config.algorithm
        self._acted = acted
        self.rule = spec.rollout(self.config)

    def breaches(self) -> list[Breach]:
        """Return all broken rules; a rule that raises counts as broken."""
        return broken(RULES, self)

    def make(self) -> OffPolicyAlgorithm:
        """Return a new algorithm."""
        algorithm = self.spec.make(self.config)
        assert isinstance(algorithm, OffPolicyAlgorithm)
        if self.spec.needs_demonstrations:
            policy = self._acted.begin()
            algorithm.take_demonstrations(self._demonstrated(policy.num_action_chunks, policy.num_actions), policy)
        return algorithm

    def _demonstrated(self, num_chunks: int, num_actions: int) -> DemonstratedSteps:
        draw = torch.Generator().manual_seed(0)
        num_rows = 4 * ROWS
        proprio, following = torch.randn(2, num_rows, self._acted.num_proprio, generator=draw).numpy()
        actions = torch.randn(num_rows, num_chunks, num_actions, generator=draw).numpy()
        rewards = torch.randn(num_rows, generator=draw)
        terminated = torch.rand(num_rows, generator=draw) < 0.1
        return DemonstratedSteps(proprio, actions, rewards, torch.full_like(rewards, 0.9), terminated, following)

    def begin(self) -> UpdateContext:
        """Return a context with a new policy."""
        return one_rank(self._acted.begin())

    def collected(self, number: int) -> tuple[ChunkSteps, dict[str, Tensor]]:
        """Return (chunk steps, arrays of the trajectory by name, each [T, B, ...]) of a training step."""
        draw = torch.Generator().manual_seed(number)
        steps = fake_steps(self.config, self.rule, draw)
        rows = torch.randint(len(self._acted.tokens), (len(steps.rewards), ROWS), generator=draw)
        proprio, following = torch.randn(2, *rows.shape, self._acted.num_proprio, generator=draw)
        return steps, {"tokens": self._acted.tokens[rows], "proprio": proprio, "next_proprio": following}

    def update(
        self, algorithm: OffPolicyAlgorithm, context: UpdateContext, steps: ChunkSteps, held: dict[str, Tensor]
    ) -> dict[str, float]:
        """Let an algorithm learn from a training step."""
        context.random.manual_seed(context.num_updates)
        arrays = {name: tensor.numpy() for name, tensor in held.items()}
        trajectory = cast("Trajectory", SimpleNamespace(valid=steps.valid.numpy(), **arrays))
        metrics = algorithm.update(steps, trajectory, context)
        context.num_updates += 1
        return metrics

    def learned(self, algorithm: OffPolicyAlgorithm, context: UpdateContext) -> dict[str, float]:
        """Run training steps until one took optimizer steps. Returns its metrics."""
        metrics: dict[str, float] = {}
        for number in range(MAX_STEPS):
            metrics = self.update(algorithm, context, *self.collected(number))
            if metrics.get("num_optimizer_steps"):
                break
        return metrics

    def speed(self) -> tuple[float, int]:
        """Return (chunk steps per second through updates, peak bytes of this process)."""
        algorithm = self.make()
        context = self.begin()
        self.learned(algorithm, context)
        steps, held = self.collected(MAX_STEPS)
        start = time.monotonic()
        self.update(algorithm, context, steps, held)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return float(steps.valid.sum()) / (time.monotonic() - start), peak


def _rollout(contract: OffPolicyContract) -> Iterator[str]:
    """Check that groups have members, and that the spec says what the class is."""
    if contract.spec.is_on_policy:
        yield "the class is an OffPolicyAlgorithm: set is_on_policy=False in its spec"
    if contract.rule.group_size < 1:
        yield f"group_size is {contract.rule.group_size}"


def _learning(contract: OffPolicyContract) -> Iterator[str]:
    """Check that it takes optimizer steps, which change the policy, and that its metrics are finite."""
    context = contract.begin()
    before = weights(context)
    metrics = contract.learned(contract.make(), context)
    missing = {"num_optimizer_steps", "num_nonfinite"} - set(metrics)
    if missing:
        yield f"its metrics lack {', '.join(sorted(missing))}"
    elif not metrics["num_optimizer_steps"]:
        yield f"it took no optimizer step in {MAX_STEPS} training steps"
    elif torch.equal(before, weights(context)):
        yield "an update left the policy as it was"
    wrong = sorted(name for name, number in metrics.items() if not math.isfinite(number))
    if wrong:
        yield f"not finite: {', '.join(wrong)}"
    if not weights(context).isfinite().all():
        yield "weights of the policy are not finite"


def _invalid_steps(contract: OffPolicyContract) -> Iterator[str]:
    """Check that invalid chunk steps, even with NaN, change nothing."""
    contexts = []
    for is_spoiled in (False, True):
        algorithm = contract.make()
        context = contract.begin()
        for number in range(MAX_STEPS):
            steps, held = contract.collected(number)
            if is_spoiled:
                rewards, values = (torch.where(steps.valid, x, torch.nan) for x in (steps.rewards, steps.values))
                steps = replace(steps, rewards=rewards, values=values)
                for tensor in held.values():
                    tensor[~steps.valid] = torch.nan if tensor.is_floating_point() else 0
            if contract.update(algorithm, context, steps, held)["num_optimizer_steps"]:
                break
        contexts.append(context)
    if not torch.equal(weights(contexts[0]), weights(contexts[1])):
        yield "what invalid chunk steps hold changes the policy"


def _state(contract: OffPolicyContract) -> Iterator[str]:
    """Check that an algorithm that was restored from its state takes the same update."""
    algorithm = contract.make()
    context = contract.begin()
    contract.learned(algorithm, context)
    restored = contract.make()
    twin = contract.begin()
    restored.load_state_dict({name: tensor.clone() for name, tensor in algorithm.state_dict().items()})
    twin.policy.module.load_state_dict(context.policy.module.state_dict())
    twin.num_updates = context.num_updates
    steps, held = contract.collected(MAX_STEPS)
    for learner, learner_context in ((algorithm, context), (restored, twin)):
        contract.update(learner, learner_context, steps, held)
    if not torch.equal(weights(context), weights(twin)):
        yield "a restored algorithm takes another update: its state dict lacks something"


RULES: tuple[Callable[[OffPolicyContract], Iterator[str]], ...] = (_rollout, _learning, _invalid_steps, _state)
