"""Differences of success rates: published intervals, pairs by reset seed, training seeds, and coverage."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from rlrun.observability.records import EpisodeOutcome, EvaluationRecord, wilson_interval
from rlrun.observability.report.differences import compare_success, mcnemar_p, paired_interval


def evaluation(successes: list[bool], first_seed: int = 0, void: tuple[int, ...] = ()) -> EvaluationRecord:
    outcomes = [EpisodeOutcome(first_seed + i, one, 0.0, 5, "", False) for i, one in enumerate(successes)]
    outcomes += [EpisodeOutcome(seed, False, 0.0, 1, "", True) for seed in void]
    low, high = wilson_interval(sum(successes), len(successes))
    rate = sum(successes) / len(successes)
    return EvaluationRecord(0, sum(successes), len(successes), rate, low, high, 0.0, len(void), 0.0, outcomes)


@pytest.mark.parametrize(
    ("table", "published"),
    [  # both, only A, only B, neither: the two examples of Fagerland, Lydersen and Laake, Stat. Med. 33 (2014), p. 2850
        ((1, 7, 1, 12), (-0.507, -0.026)),
        ((59, 6, 16, 80), (0.005, 0.119)),
    ],
)
def test_paired_intervals_are_those_of_the_literature(table, published) -> None:
    value, low, high = paired_interval(*table)
    assert (low, high) == pytest.approx(published, abs=5e-4)
    assert value == pytest.approx((table[2] - table[1]) / sum(table))


def test_paired_intervals_cover_what_is_true() -> None:
    rng = np.random.default_rng(0)
    both, only_a, only_b = 0.4, 0.1, 0.25
    tables = rng.multinomial(64, [both, only_a, only_b, 0.25], size=2_000)
    bounds = np.array([paired_interval(*map(int, table))[1:] for table in tables])
    covered = np.mean((bounds[:, 0] <= only_b - only_a) & (only_b - only_a <= bounds[:, 1]))
    assert 0.935 < covered < 0.98


def test_mcnemar_is_the_two_sided_binomial_test() -> None:
    for only_a, only_b in [(1, 7), (7, 1), (4, 12), (3, 3), (0, 0)]:
        chances = [comb(only_a + only_b, k) / 2 ** (only_a + only_b) for k in range(only_a + only_b + 1)]
        as_rare = sum(chance for chance in chances if chance <= chances[only_a] * (1 + 1e-9))
        assert mcnemar_p(only_a, only_b) == pytest.approx(as_rare)


def test_one_run_each_is_compared_by_equal_reset_seeds() -> None:
    a = evaluation([True] * 20 + [False] * 44, void=(3, 70))
    b = evaluation([True] * 40 + [False] * 24)
    found = compare_success([a], [b], [[0], [0]])
    assert found.value == pytest.approx(20 / 64) and found.is_clear
    assert found.basis.startswith("64 pairs of equal seeds: 20 succeed only in B, 0 only in A; McNemar p = 1.9e-06")
    apart = compare_success([a], [evaluation([True] * 40 + [False] * 24, first_seed=500)], [[0], [0]])
    assert apart.basis == "all episodes; no pairs of equal seeds"
    assert apart.high - apart.low > found.high - found.low


def test_several_runs_are_compared_over_training_seeds() -> None:
    def runs(*successes: int) -> list[EvaluationRecord]:
        return [evaluation([True] * one + [False] * (50 - one)) for one in successes]

    a, b = runs(10, 20, 30), runs(20, 30, 41)
    paired = compare_success(a, b, [[0, 1, 2], [0, 1, 2]])
    assert paired.value == pytest.approx(31 / 150) and paired.is_clear
    assert compare_success(a, b[::-1], [[0, 1, 2], [2, 1, 0]]).value == pytest.approx(paired.value)
    apart = compare_success(a, b, [[0, 1, 2], [3, 4, 5]])
    assert not apart.is_clear, "without pairs the spread of the seeds hides it"
    assert apart.basis == "3 and 3 training seeds"
    # Welch's interval for 0.2, 0.4, 0.6 and 0.4, 0.6, 0.82: t(0.975; 3 degrees) = 3.1824
    assert apart.high - apart.value == pytest.approx(
        3.1824 * np.sqrt(0.04 / 3 + np.var([0.4, 0.6, 0.82], ddof=1) / 3), 1e-3
    )
    alike = compare_success(runs(25, 25), runs(26, 26), [[0, 1], [0, 1]])
    assert not alike.is_clear, "equal seeds by luck are not less uncertain than their episodes"
