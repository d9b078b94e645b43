"""Rows that pad compiled forward passes to one size: they have no part in losses, counts or metrics."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from rlrun.actor.imitation import DemonstrationBatch, imitate
from rlrun.actor.learning_batch import learning_batch, padded
from rlrun.actor.updates import update
from rlrun.algorithms.advantages import on_one_rank
from rlrun.algorithms.algorithm import Algorithm, Losses, Outputs, Reduction, Targets
from rlrun.algorithms.losses import aggregate_logprobs
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import Aggregation, AlgorithmConfig, CompileBackend, RatioLevel
from rlrun.policies.distributions import Bins
from tests.numerics import assert_moved_alike, assert_norm_close
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_policy import BINS
from tests.unit.actor.tiny_run import (
    C,
    K,
    demonstrations,
    learner,
    share,
    tiny_config,
    tiny_policy,
    trajectory,
    weights,
)

CPU = torch.device("cpu")
IN_DOUBLE = 1e-12
Learned = tuple[dict[str, np.ndarray], dict[str, float], set[int], int]


def judged(algorithm: Algorithm, targets: Targets, logits: Tensor, values: Tensor) -> tuple[Losses, Tensor]:
    """Return the losses of float64 outputs, and the gradient of the logits."""
    logits = logits.clone().requires_grad_()
    distribution = Bins(logits, 1.0)
    logprobs = distribution.logprobs(targets.tokens)
    level = algorithm.config.ratio_level.value
    units = aggregate_logprobs(logprobs, targets.token_mask, level, C)[0]
    losses = algorithm.loss(Outputs(distribution, logprobs, units, values, reference=logprobs.detach() - 0.1), targets)
    total = torch.stack([term.mean * term.coefficient for term in losses.terms]).sum()
    return losses, torch.autograd.grad(total, logits)[0]


def in_double(targets: Targets) -> Targets:
    numbers = {
        field.name: value.double() if (value := getattr(targets, field.name)).is_floating_point() else value
        for field in dataclasses.fields(targets)
    }
    return Targets(**numbers)


@pytest.mark.parametrize("name", ["ppo", "grpo", "rloo", "reinforce_plus_plus"])
@pytest.mark.parametrize("aggregation", Aggregation)
@pytest.mark.parametrize("level", RatioLevel)
def test_padding_has_no_part_in_losses_and_gradients(name: str, aggregation: Aggregation, level: RatioLevel) -> None:
    settings = AlgorithmConfig(name=name, aggregation=aggregation, ratio_level=level, entropy_coef=0.01, kl_coef=0.1)
    algorithm = ALGORITHMS.get(name).make(settings)
    assert isinstance(algorithm, Algorithm)
    batch = learning_batch(trajectory(), algorithm, on_one_rank)
    rows = batch.usable[:5]
    at = padded(rows, 8)
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(len(at), K, BINS, generator=draw, dtype=torch.float64)  # other ones for what pads
    values = torch.randn(len(at), generator=draw, dtype=torch.float64)
    exact, gradient = judged(algorithm, in_double(batch.rows(rows, 5, CPU).targets), logits[:5], values[:5])
    longer = in_double(batch.rows(at, 5, CPU).targets)
    found, longer_gradient = judged(algorithm, longer, logits, values)
    assert gradient.abs().max() > 0
    assert_norm_close(longer_gradient[:5], gradient, IN_DOUBLE)
    assert not longer_gradient[5:].any()
    for one, other in zip(found.terms, exact.terms, strict=True):
        assert one.mean.item() == pytest.approx(other.mean.item(), rel=IN_DOUBLE, abs=IN_DOUBLE)
    masks = {Reduction.units: longer.unit_mask, Reduction.tokens: longer.token_mask, Reduction.rows: longer.row_mask}
    for over, numbers in exact.metrics.items():
        assert not masks[over][5:].any()
        for metric, value in numbers.items():
            same = float(found.metrics[over][metric])
            assert same == pytest.approx(float(value), rel=IN_DOUBLE, abs=IN_DOUBLE), metric


def learned(backend: CompileBackend | None, micro_batch_size: int) -> Learned:
    """Return weights, metrics, the numbers of rows of all forward passes, and how many graphs were made for blocks."""
    torch._dynamo.reset()
    counters.clear()
    config = tiny_config(micro_batch_size=micro_batch_size)
    config.policy.compile_backend = backend
    config.algorithm.kl_coef = 0.1  # with passes of the reference policy
    rank, sizes = learner(config), set[int]()
    rank.policy.module.blocks[0].register_forward_pre_hook(lambda _, inputs: sizes.add(len(inputs[0])))
    metrics = update(rank, share(trajectory()), 0)
    return weights(rank), metrics, sizes, counters["stats"]["unique_graphs"]


@pytest.mark.order_of_sums
@pytest.mark.parametrize("micro_batch_size", [5, 6])
def test_compiled_passes_of_all_ranks_have_one_size_and_learn_the_same(
    two_ranks: RankPool, micro_batch_size: int
) -> None:
    """Rank 0 has 16 rows, rank 1 fewer: without padding passes have up to four sizes."""
    plain = two_ranks.run(learned, None, micro_batch_size)
    assert len({size for _, _, sizes, _ in plain for size in sizes}) > 1
    whole, exact, _, _ = plain[0]
    compiled = two_ranks.run(learned, CompileBackend.aot_eager, micro_batch_size)
    assert len({size for _, _, sizes, _ in compiled for size in sizes}) == 1
    assert {graphs for *_, graphs in compiled} == {2}  # with gradients, and without for the reference
    for after, metrics, _, _ in compiled:
        assert_moved_alike(tiny_policy().module.state_dict(), after, whole)
        assert metrics == pytest.approx(exact, rel=1e-4, abs=1e-6)


def imitated(backend: CompileBackend | None) -> Learned:
    torch._dynamo.reset()
    counters.clear()
    config = tiny_config(micro_batch_size=2)
    config.policy.compile_backend = backend
    rank, sizes = learner(config), set[int]()
    rank.policy.module.blocks[0].register_forward_pre_hook(lambda _, inputs: sizes.add(len(inputs[0])))
    batch = demonstrations(10)
    kept = slice(0, 5 - 2 * rank.ranks.rank)
    fewer = DemonstrationBatch(batch.images[kept], batch.proprio[kept], batch.instructions[kept], batch.actions[kept])
    metrics = imitate(rank, [fewer])
    return weights(rank), metrics, sizes, counters["stats"]["unique_graphs"]


@pytest.mark.order_of_sums
def test_compiled_passes_of_imitation_have_one_size_and_learn_the_same(two_ranks: RankPool) -> None:
    whole, exact, sizes, _ = two_ranks.run(imitated, None)[0]
    assert sizes == {2, 1}
    for after, metrics, sizes, graphs in two_ranks.run(imitated, CompileBackend.aot_eager):
        assert sizes == {2} and graphs == 1
        assert_moved_alike(tiny_policy().module.state_dict(), after, whole)
        assert metrics == pytest.approx(exact, rel=1e-4, abs=1e-6)
