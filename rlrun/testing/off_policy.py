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

from rlrun.algorithms.algorithm import ChunkSteps, OffPolicyAlgorithm
from rlrun.algorithms.spec import AlgorithmSpec
from rlrun.config.schema import RunConfig
from rlrun.data.messages import Trajectory
from rlrun.testing import Breach, broken
from rlrun.testing.algorithms import ROWS, fake_steps

MAX_STEPS = 20  # training steps until an algorithm must have learned


@dataclass(frozen=True)
class SampledPolicy:
    """A policy for the algorithm, and actions sampled from it."""

    begin: Callable[[], Any]  # returns a new policy, always with the same weights
    tokens: Tensor  # [N, ...], sampled actions


class FakeLearner:
    """The learner of a single rank, without a process group."""

    world_size = 1
    device = torch.device("cpu")

    def __init__(self, policy: Any):
        self.policy, self.num_updates = policy, 0
        self.random = torch.Generator()
        trained = [parameter for parameter in policy.module.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.SGD(trained, lr=1e-2)

    def step(self, loss: Tensor) -> bool:
        """Take one optimizer step."""
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return True

    def sum(self, x: Tensor) -> Tensor:
        """Return a copy."""
        return x.detach().clone()

    def any(self, flag: bool) -> bool:
        """Return the same."""
        return flag

    def weights(self) -> Tensor:
        """Return all weights of the policy in one tensor."""
        return torch.cat([parameter.detach().flatten() for parameter in self.policy.module.parameters()])


class OffPolicyContract:
    """Checks an off-policy algorithm with made-up chunk steps and a real policy."""

    def __init__(self, spec: AlgorithmSpec, config: RunConfig, acted: SampledPolicy):
        self.spec, self.config, self._acted = spec, config.algorithm, acted
        self.rule = spec.rollout(self.config)

    def breaches(self) -> list[Breach]:
        """Return all broken rules; a rule that raises counts as broken."""
        return broken(RULES, self)

    def make(self) -> OffPolicyAlgorithm:
        """Return a new algorithm."""
        algorithm = self.spec.make(self.config)
        assert isinstance(algorithm, OffPolicyAlgorithm)
        return algorithm

    def begin(self) -> FakeLearner:
        """Return a learner with a new policy."""
        return FakeLearner(self._acted.begin())

    def collected(self, number: int) -> tuple[ChunkSteps, Tensor]:
        """Return (chunk steps, tokens [T, B, ...]) of a training step."""
        draw = torch.Generator().manual_seed(number)
        steps = fake_steps(self.config, self.rule, draw)
        rows = torch.randint(len(self._acted.tokens), (len(steps.rewards), ROWS), generator=draw)
        return steps, self._acted.tokens[rows]

    def update(
        self, algorithm: OffPolicyAlgorithm, learner: FakeLearner, steps: ChunkSteps, tokens: Tensor
    ) -> dict[str, float]:
        """Let an algorithm learn from a training step."""
        learner.random.manual_seed(learner.num_updates)
        trajectory = cast("Trajectory", SimpleNamespace(tokens=tokens.numpy(), valid=steps.valid.numpy()))
        metrics = algorithm.update(steps, trajectory, learner)
        learner.num_updates += 1
        return metrics

    def learned(self, algorithm: OffPolicyAlgorithm, learner: FakeLearner) -> dict[str, float]:
        """Run training steps until one took optimizer steps. Returns its metrics."""
        metrics: dict[str, float] = {}
        for number in range(MAX_STEPS):
            metrics = self.update(algorithm, learner, *self.collected(number))
            if metrics.get("num_optimizer_steps"):
                break
        return metrics

    def speed(self) -> tuple[float, int]:
        """Return (chunk steps per second through updates, peak bytes of this process)."""
        algorithm, learner = self.make(), self.begin()
        self.learned(algorithm, learner)
        steps, tokens = self.collected(MAX_STEPS)
        start = time.monotonic()
        self.update(algorithm, learner, steps, tokens)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return float(steps.valid.sum()) / (time.monotonic() - start), peak


def _rollout(contract: OffPolicyContract) -> Iterator[str]:
    """Check that groups have members."""
    if contract.rule.group_size < 1:
        yield f"group_size is {contract.rule.group_size}"


def _learning(contract: OffPolicyContract) -> Iterator[str]:
    """Check that it takes optimizer steps, which change the policy, and that its metrics are finite."""
    learner = contract.begin()
    before = learner.weights()
    metrics = contract.learned(contract.make(), learner)
    missing = {"num_optimizer_steps", "num_nonfinite"} - set(metrics)
    if missing:
        yield f"its metrics lack {', '.join(sorted(missing))}"
    elif not metrics["num_optimizer_steps"]:
        yield f"it took no optimizer step in {MAX_STEPS} training steps"
    elif torch.equal(before, learner.weights()):
        yield "an update left the policy as it was"
    wrong = sorted(name for name, number in metrics.items() if not math.isfinite(number))
    if wrong:
        yield f"not finite: {', '.join(wrong)}"
    if not learner.weights().isfinite().all():
        yield "weights of the policy are not finite"


def _invalid_steps(contract: OffPolicyContract) -> Iterator[str]:
    """Check that invalid chunk steps, even with NaN, change nothing."""
    learners = []
    for is_spoiled in (False, True):
        algorithm, learner = contract.make(), contract.begin()
        for number in range(MAX_STEPS):
            steps, tokens = contract.collected(number)
            if is_spoiled:
                rewards, values = (torch.where(steps.valid, x, torch.nan) for x in (steps.rewards, steps.values))
                steps = replace(steps, rewards=rewards, values=values)
                tokens = tokens.clone()
                tokens[~steps.valid] = torch.nan if tokens.is_floating_point() else 0
            if contract.update(algorithm, learner, steps, tokens)["num_optimizer_steps"]:
                break
        learners.append(learner)
    if not torch.equal(learners[0].weights(), learners[1].weights()):
        yield "what invalid chunk steps hold changes the policy"


def _state(contract: OffPolicyContract) -> Iterator[str]:
    """Check that an algorithm that was restored from its state takes the same update."""
    algorithm, learner = contract.make(), contract.begin()
    contract.learned(algorithm, learner)
    restored, twin = contract.make(), contract.begin()
    restored.load_state_dict({name: tensor.clone() for name, tensor in algorithm.state_dict().items()})
    twin.policy.module.load_state_dict(learner.policy.module.state_dict())
    twin.num_updates = learner.num_updates
    steps, tokens = contract.collected(MAX_STEPS)
    for one, own in ((algorithm, learner), (restored, twin)):
        contract.update(one, own, steps, tokens)
    if not torch.equal(learner.weights(), twin.weights()):
        yield "a restored algorithm takes another update: its state dict lacks something"


RULES: tuple[Callable[[OffPolicyContract], Iterator[str]], ...] = (_rollout, _learning, _invalid_steps, _state)
