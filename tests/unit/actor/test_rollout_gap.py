"""Differences of log-probabilities by rollout worker, before the first optimizer step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rlrun.actor.update_metrics import RolloutGap
from rlrun.config.schema import RunConfig
from rlrun.policies.distributions import Bins

T, B, K = 3, 4, 2  # this rank is the second of two, with the rows 4..7 of env workers 2 and 3

SURE = SimpleNamespace(
    has_likelihood=True, entropy=lambda: torch.zeros(()), logprob_variance=lambda: None
)  # of one choice, whose log-probability is 0


@pytest.fixture
def gap() -> RolloutGap:
    config = RunConfig()
    config.env.num_envs, config.env.num_workers, config.rollout.num_workers = 8, 4, 4
    alone = SimpleNamespace(rank=1, sum=lambda x: x, max=lambda x: x)
    return RolloutGap(config, alone, T * B, B, torch.device("cpu"))


def add(gap: RolloutGap, rows: list[int], by: dict[int, float], is_first: bool) -> None:
    """Add rows, whose log-probabilities differ by 0.01 each, or by the given numbers."""
    old = torch.zeros(len(rows), K)
    new = torch.tensor([[by.get(row, 0.01)] * K for row in rows])
    gap.has_stepped = not is_first
    gap.add(torch.tensor(rows), SURE, new, old, torch.ones(len(rows), K, dtype=torch.bool))


def test_the_farthest_worker_is_told_not_the_mean_of_all(gap: RolloutGap) -> None:
    add(gap, list(range(T * B)), {row: -0.5 for row in range(T * B) if row % B >= 2}, is_first=True)  # env worker 3
    found = gap.metrics()
    assert found["rollout_logprob_gap"] == pytest.approx(0.5)
    assert found["rollout_logprob_gap_max"] == pytest.approx(0.5) and found["rollout_logprob_gap_worker"] == 3


def test_the_farthest_worker_and_that_of_the_farthest_row_may_be_two(gap: RolloutGap) -> None:
    add(gap, list(range(T * B)), {row: 0.15 for row in range(T * B) if row % B >= 2} | {0: 0.3}, is_first=True)
    found = gap.metrics()
    assert (found["rollout_logprob_gap_worker"], found["rollout_logprob_gap_max_worker"]) == (3, 2)


def test_rows_of_a_policy_that_has_moved_do_not_count(gap: RolloutGap) -> None:
    add(gap, list(range(8)), {6: -5.0}, is_first=True)
    add(gap, list(range(8, 12)), {9: -9.0}, is_first=False)
    found = gap.metrics()
    assert found["rollout_logprob_gap_max"] == pytest.approx(5.0) and found["rollout_logprob_gap_max_worker"] == 3
    assert found["rollout_logprob_gap_least"] == pytest.approx(0.01)


def test_choices_that_were_not_executed_and_missing_rows_do_not_count(gap: RolloutGap) -> None:
    mask = torch.tensor([[True, False]])
    gap.add(torch.tensor([0]), SURE, torch.tensor([[0.1, 9.0]]), torch.zeros(1, K), mask)
    gap.add(torch.tensor([1]), SURE, torch.full((1, K), 9.0), torch.zeros(1, K), torch.zeros(1, K, dtype=torch.bool))
    assert gap.metrics()["rollout_logprob_gap_max"] == pytest.approx(0.1)


@pytest.mark.parametrize("p", [0.9, 0.99, 0.9999])
def test_honest_draws_of_a_sure_policy_are_no_fault(gap: RolloutGap, p: float) -> None:
    """Where no rare choice is drawn, each row has the same small number."""
    random = torch.Generator().manual_seed(0)
    logits = torch.tensor([p, 1 - p]).log().expand(T * B, K, 2)
    bins = Bins(logits, 1.0)
    for _ in range(30):
        tokens = (torch.rand(T * B, K, generator=random) > p).to(torch.uint8)
        old = bins.logprobs(tokens)
        gap.add(torch.arange(T * B), bins, old, old, torch.ones(T * B, K, dtype=torch.bool))
    assert abs(gap.metrics()["rollout_draws"]) < 5.5


def test_draws_are_judged_by_worker(gap: RolloutGap) -> None:
    """Of two equal choices, drawn by chance, or always the one with the larger log-probability."""

    def drawn(rows: list[int], logprob: torch.Tensor) -> None:
        even = SimpleNamespace(
            has_likelihood=True, entropy=lambda: torch.full_like(logprob, 1.0), logprob_variance=lambda: None
        )
        gap.add(torch.tensor(rows), even, logprob, logprob, torch.ones_like(logprob, dtype=torch.bool))

    generator = torch.Generator().manual_seed(0)
    honest = [row for row in range(T * B) if row % B < 2]
    biased = [row for row in range(T * B) if row % B >= 2]
    for _ in range(20):
        drawn(honest, -1.0 + torch.randint(0, 2, (len(honest), K), generator=generator) - 0.5)
        drawn(biased, torch.full((len(biased), K), -0.5))
    found = gap.metrics()
    assert found["rollout_draws_worker"] == 3 and found["rollout_draws"] == pytest.approx((20 * len(biased)) ** 0.5)
