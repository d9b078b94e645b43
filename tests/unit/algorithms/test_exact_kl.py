"""`algorithm.target_kl` and its metric take the KL in closed form where a policy has one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlrun.algorithms.algorithm import Losses
from rlrun.algorithms.losses import aggregate_logprobs, clipped_surrogate
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import RatioLevel, RunConfig
from rlrun.testing.algorithms import AlgorithmContract, FakeDistribution


class Closed(FakeDistribution):
    """Choices whose KL is 0.1 each."""

    def kl_from_behavior(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        return torch.full(tokens.shape, 0.1)


def surrogate(kind: type[FakeDistribution], is_old: bool = False, level: RatioLevel = RatioLevel.token) -> Losses:
    config = RunConfig()
    config.algorithm.ratio_level = level
    contract = AlgorithmContract(ALGORITHMS.get("ppo"), config)
    logprobs, values, targets = contract.batch()
    outputs = contract.outputs(logprobs + 0.2, values, targets)
    acted = aggregate_logprobs(logprobs, targets.token_mask, level.value, 2)[0] if is_old else None
    return clipped_surrogate(
        config.algorithm, replace(outputs, distribution=kind(logprobs), acted_logprobs=acted), targets
    )


@pytest.mark.parametrize(("level", "choices"), [(RatioLevel.token, 1), (RatioLevel.action, 3)])
def test_the_closed_kl_of_a_unit_is_the_sum_over_its_choices(level: RatioLevel, choices: int) -> None:
    losses = surrogate(Closed, level=level)
    assert losses.approx_kl is not None
    assert float(losses.approx_kl) == pytest.approx(0.1 * choices)


def test_without_one_it_is_estimated() -> None:
    losses = surrogate(FakeDistribution)
    assert losses.approx_kl is not None
    assert 0 < float(losses.approx_kl) != pytest.approx(0.1)
    assert not any("kl_exact" in metrics for metrics in losses.metrics.values())


def test_what_an_older_policy_chose_says_nothing_of_the_proximal_one() -> None:
    losses = surrogate(Closed, is_old=True)
    assert not any("kl_exact" in metrics for metrics in losses.metrics.values())
