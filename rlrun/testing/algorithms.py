"""The contract of algorithms, as a suite of checks: `rlrun check-algorithm NAME`.

Shape legend: T chunk steps, B rows (envs), M chunk steps flat, K choices of a chunk step.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.advantages import on_one_rank
from rlrun.algorithms.algorithm import (
    ActionDistribution,
    Algorithm,
    ChunkSteps,
    Losses,
    MatchedVelocities,
    Outputs,
    Reduction,
    Targets,
)
from rlrun.algorithms.losses import aggregate_logprobs, aggregation_counts
from rlrun.algorithms.spec import AlgorithmSpec, RolloutRule
from rlrun.config.schema import AlgorithmConfig, RunConfig
from rlrun.testing import Breach, broken

# B, C, K
ROWS = 8
CHUNK = 2
CHOICES = 6
EPISODE = 4  # rows of one episode in a batch
TOLERANCE = 1e-4
TIMED_S = 0.5


class FakeDistribution(ActionDistribution):
    """An action distribution whose log-probabilities are the leaf of a graph."""

    def __init__(self, logprobs: Tensor):
        self._logprobs = logprobs

    def sample(self, keys: np.ndarray) -> Tensor:
        return torch.zeros_like(self._logprobs)

    def most_likely(self) -> Tensor:
        return torch.zeros_like(self._logprobs)

    def logprobs(self, tokens: Tensor) -> Tensor:
        return self._logprobs

    def entropy(self) -> Tensor:
        return -self._logprobs

    def flow_matching_terms(self, tokens: Tensor) -> MatchedVelocities:
        """Return velocities that move towards the chosen actions where log-probabilities rise."""
        velocity = self._logprobs.unflatten(1, (CHUNK, 1, CHOICES // CHUNK))
        acting = velocity.detach()
        return MatchedVelocities(velocity, acting, acting + 1.0, torch.ones(len(acting), 1))

    def slice_rows(self, num_rows: int) -> FakeDistribution:
        return FakeDistribution(self._logprobs[:num_rows])


class AlgorithmContract:
    """Checks an on-policy algorithm with made-up chunk steps."""

    def __init__(self, spec: AlgorithmSpec, config: RunConfig):
        self.spec = spec
        self.config = config.algorithm
        self.rule = spec.rollout(self.config)
        self._draw = torch.Generator().manual_seed(0)

    def breaches(self) -> list[Breach]:
        """Return all broken rules; a rule that raises counts as broken."""
        return broken(RULES, self)

    def make(self) -> Algorithm:
        """Return a new algorithm."""
        algorithm = self.spec.make(self.config)
        assert isinstance(algorithm, Algorithm)
        return algorithm

    def steps(self) -> ChunkSteps:
        """Return new chunk steps, by the rollout rule."""
        return fake_steps(self.config, self.rule, self._draw)

    def batch(self, num_rows: int = 12) -> tuple[Tensor, Tensor, Targets]:
        """Return (log-probabilities [M, K], values [M], targets); some rows and choices are masked."""
        logprobs = -1.0 + 0.1 * torch.randn(num_rows, CHOICES, generator=self._draw)
        values = torch.randn(num_rows, generator=self._draw)
        row_mask = torch.arange(num_rows) % 4 != 3
        token_mask = row_mask[:, None].repeat(1, CHOICES)
        token_mask[0, CHOICES // 2 :] = False
        old, unit_mask = aggregate_logprobs(logprobs, token_mask, self.config.ratio_level.value, CHUNK)
        advantages = torch.where(torch.arange(num_rows) % 2 == 0, 1.0, -1.0)
        tokens = torch.zeros(num_rows, CHOICES)
        returns = values + 1.0
        old_values = values.clone()
        sizes = (_episode_size(mask) for mask in (unit_mask, token_mask))
        targets = Targets(tokens, token_mask, unit_mask, old, advantages, old_values, returns, row_mask, *sizes)
        return logprobs, values, targets

    def outputs(self, logprobs: Tensor, values: Tensor, targets: Targets) -> Outputs:
        """Return the outputs as the learner makes them."""
        units = aggregate_logprobs(logprobs, targets.token_mask, self.config.ratio_level.value, CHUNK)[0]
        return Outputs(FakeDistribution(logprobs), logprobs, units, values, None, logprobs.detach() - 0.1)

    def total(self, losses: Losses) -> Tensor:
        """Return the sum of all terms."""
        return torch.stack([term.mean * term.coefficient for term in losses.terms]).sum()

    def speed(self) -> tuple[float, int]:
        """Return (chunk steps per second through one loss and its gradient, peak bytes of this process)."""
        algorithm = self.make()
        (logprobs, values, targets) = self.batch(256)
        calls = 0
        start = time.monotonic()
        while time.monotonic() - start < TIMED_S:
            leaf = logprobs.clone().requires_grad_()
            self.total(algorithm.loss(self.outputs(leaf, values, targets), targets)).backward()
            calls += 1
        return calls * 256 / (time.monotonic() - start), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fake_steps(config: AlgorithmConfig, rule: RolloutRule, draw: torch.Generator) -> ChunkSteps:
    """Return two rollout epochs of ROWS rows with a void row, a terminated and a truncated episode."""
    horizon = config.horizon
    shape = (2 * horizon, ROWS)
    normal = lambda: torch.randn(shape, generator=draw)  # noqa: E731
    valid, ended, cut = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    valid[:] = True
    ended[horizon // 2, 0::2] = True
    cut[horizon - 1, 1::2] = True
    cut[-1] = ~ended[-1]
    if rule.one_episode:  # rows rest after their episode
        valid[horizon // 2 + 1 : horizon, 0::2] = False
    valid[:, ROWS - 1] = False
    goes_on = valid & ~(ended | cut)
    goes_on[:-1] &= valid[1:]
    goes_on[horizon - 1 :: horizon] = False
    discount = torch.full(shape, config.gamma)
    group = torch.arange(ROWS, dtype=torch.int32) // rule.group_size
    return ChunkSteps(normal(), discount, normal(), normal(), ended, cut, goes_on, valid, group, horizon)


def _rollout(contract: AlgorithmContract) -> Iterator[str]:
    """Check the rollout rule: an algorithm with a critic gets values, and groups have members."""
    rule = contract.rule
    spec = contract.spec
    if not spec.is_on_policy:
        yield "is_on_policy is false, but the class is no OffPolicyAlgorithm"
    if rule.group_size < 1:
        yield f"group_size is {rule.group_size}"
    if spec.has_critic and not rule.needs_values:
        yield "it has a critic, but its rollout rule asks for no values"
    if rule.needs_values and not spec.has_critic:
        yield "its rollout rule asks for values, but nothing trains the critic that gives them"


def _advantages(contract: AlgorithmContract) -> Iterator[str]:
    """Check that estimates are finite float32 [T, B], 0 outside the mask, and the mask has valid chunk steps only."""
    steps = contract.steps()
    judged = contract.make().advantages(steps, on_one_rank)
    named = {"advantages": judged.advantages, "mask": judged.mask, "raw": judged.raw}
    named |= {} if judged.returns is None else {"returns": judged.returns}
    for name, values in named.items():
        if values.shape != steps.rewards.shape:
            yield f"{name} are {tuple(values.shape)}, expected {tuple(steps.rewards.shape)}"
            return
    if judged.mask.dtype != torch.bool:
        yield f"the mask is {judged.mask.dtype}, not bool"
        return
    if judged.advantages.dtype != torch.float32:
        yield f"advantages are {judged.advantages.dtype}, not float32"
    if (judged.mask & ~steps.valid).any():
        yield "the mask keeps chunk steps that are not valid"
    if not judged.mask.any():
        yield "the mask keeps nothing"
    if not judged.advantages[judged.mask].isfinite().all():
        yield "advantages are not finite"
    if judged.advantages[~judged.mask].ne(0).any():
        yield "a masked chunk step has an advantage"
    if (judged.returns is None) == contract.spec.has_critic:
        yield "returns are what a critic is trained towards: give them exactly where has_critic is true"


def _invalid_steps(contract: AlgorithmContract) -> Iterator[str]:
    """Check that invalid chunk steps, even with NaN, change no advantage."""
    steps = contract.steps()
    rewards, values, next_values = (
        torch.where(steps.valid, held, torch.nan) for held in (steps.rewards, steps.values, steps.next_values)
    )
    clean = contract.make().advantages(steps, on_one_rank)
    spoiled = replace(steps, rewards=rewards, values=values, next_values=next_values)
    dirty = contract.make().advantages(spoiled, on_one_rank)
    if not torch.allclose(clean.advantages, dirty.advantages, atol=TOLERANCE):
        yield "what invalid chunk steps hold changes the advantages"


def _loss(contract: AlgorithmContract) -> Iterator[str]:
    """Check that terms are finite scalars, and log-probabilities move with the sign of their advantages."""
    logprobs, values, targets = contract.batch()
    leaf = logprobs.clone().requires_grad_()
    valued = values.clone().requires_grad_()
    losses = contract.make().loss(contract.outputs(leaf, valued, targets), targets)
    if not losses.terms:
        yield "the loss has no terms"
        return
    for number, term in enumerate(losses.terms):
        if term.mean.shape != () or not term.mean.isfinite() or not isinstance(term.over, Reduction):
            yield f"term {term.name or number} is no finite scalar that is a mean over one of Reduction"
            return
    total = contract.total(losses)
    if not total.requires_grad:
        yield "no gradient reaches the log-probabilities"
        return
    total.backward()
    policy = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    yield from _faults_of_gradient(policy, targets)
    has_value_gradient = valued.grad is not None and bool(valued.grad.ne(0).any())
    if has_value_gradient != contract.spec.has_critic:
        what = "get a" if has_value_gradient else "get no"
        yield f"has_critic is {contract.spec.has_critic}, but values {what} gradient"


def _faults_of_gradient(gradient: torch.Tensor, targets: Targets) -> Iterator[str]:
    """Check the gradient of log-probabilities: finite, against the advantages, and 0 where they are masked."""
    if not gradient.isfinite().all():
        yield "gradients of log-probabilities are not finite"
    if gradient.eq(0).all():
        yield "no gradient reaches the log-probabilities"
    elif (gradient * targets.advantages[:, None])[targets.token_mask].sum() > 0:
        yield "log-probabilities fall where advantages are positive"
    if gradient[~targets.token_mask].ne(0).any():
        yield "masked choices get a gradient"


def _masked_entries(contract: AlgorithmContract) -> Iterator[str]:
    """Check that masked entries, even with NaN, change neither the loss nor a gradient."""
    logprobs, values, targets = contract.batch()
    spoiled_logprobs = torch.where(targets.token_mask, logprobs, torch.nan)
    spoiled_values = torch.where(targets.row_mask, values, torch.nan)
    results = []
    for given, valued in ((logprobs, values), (spoiled_logprobs, spoiled_values)):
        leaf = given.clone().requires_grad_()
        total = contract.total(contract.make().loss(contract.outputs(leaf, valued, targets), targets))
        total.backward()
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        results.append((float(total.detach()), gradient))
    (clean, clean_grad), (dirty, dirty_grad) = results
    if not abs(clean - dirty) < TOLERANCE:
        yield f"what masked entries hold changes the loss: {clean:.4g} and {dirty:.4g}"
    elif not torch.allclose(clean_grad, dirty_grad, atol=TOLERANCE):
        yield "what masked entries hold changes gradients"


def _means(contract: AlgorithmContract) -> Iterator[str]:
    """Check that the loss does not depend on the size of micro-batches: each term is a mean over its units."""
    logprobs, values, targets = contract.batch(12)
    algorithm = contract.make()
    whole = algorithm.loss(contract.outputs(logprobs, values, targets), targets).terms
    parts = []
    for rows in (slice(0, 5), slice(5, 12)):
        part = Targets(**{name: getattr(targets, name)[rows] for name in Targets.__dataclass_fields__})
        terms = algorithm.loss(contract.outputs(logprobs[rows], values[rows], part), part).terms
        parts.append((terms, _counts(part, contract.config.aggregation.value)))
    for number, term in enumerate(whole):
        counts = [count[term.over] for _, count in parts]
        means = [terms[number].mean * count for (terms, _), count in zip(parts, counts, strict=True)]
        mean = torch.stack(means).sum() / sum(counts)
        if not torch.allclose(mean, term.mean, rtol=1e-3, atol=TOLERANCE):
            yield f"term {term.name or number} is no mean over {term.over.value}: micro-batches do not add up to it"


def _state(contract: AlgorithmContract) -> Iterator[str]:
    """Check that the state dict restores the algorithm's state."""
    algorithm = contract.make()
    other = contract.make()
    state = algorithm.state_dict()
    other.load_state_dict(state)
    if set(other.state_dict()) != set(state):
        yield "load_state_dict(state_dict()) gives another state dict"


RULES: tuple[Callable[[AlgorithmContract], Iterator[str]], ...] = (
    _rollout,
    _advantages,
    _invalid_steps,
    _loss,
    _masked_entries,
    _means,
    _state,
)


def _episode_size(mask: Tensor) -> Tensor:
    """Return float32 [M], M a multiple of EPISODE: the valid entries of each row's episode."""
    return mask.sum(-1).unflatten(0, (-1, EPISODE)).sum(-1).repeat_interleave(EPISODE).float()


def _counts(targets: Targets, aggregation: str) -> dict[Reduction, float]:
    return {
        Reduction.units: float(aggregation_counts(targets.unit_mask, aggregation, targets.episode_units).sum()),
        Reduction.tokens: float(aggregation_counts(targets.token_mask, aggregation, targets.episode_tokens).sum()),
        Reduction.rows: float(targets.row_mask.sum()),
    }
