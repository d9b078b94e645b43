"""The verdict: a rule that ends early where it can, and does not err by looking often."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from rlrun.reproduction.verdict import Outcome, agreeing_margin, exact_interval, judge, looks_within, paired_p_value


def course(rate: float, published: float, most: int, seed: int) -> tuple[Outcome, int]:
    """The outcome for a policy that succeeds at `rate`, and the episodes until then."""
    source = random.Random(seed)
    outcomes: list[bool] = []
    for first, end in pairwise((0, *looks_within(most))):
        outcomes += [source.random() < rate for _ in range(end - first)]
        verdict = judge(outcomes, published, most)
        if verdict.outcome is not Outcome.undecided:
            break
    return verdict.outcome, len(outcomes)


def test_a_broken_policy_differs_after_ten_episodes() -> None:
    verdict = judge([False] * 10, 0.97, 500)
    assert verdict.outcome is Outcome.differs
    assert verdict.sentence.startswith("differs: 0 of 10 = 0 %") and verdict.sentence.endswith("published 97 %")


def test_a_true_number_rarely_differs_however_often_the_rule_looks() -> None:
    outcomes = [course(0.9, 0.9, 500, seed)[0] for seed in range(200)]
    assert outcomes.count(Outcome.differs) <= 0.05 * 200
    assert outcomes.count(Outcome.agrees) > 0.9 * 200


def test_fifteen_points_less_differ_within_500_episodes() -> None:
    outcomes = [course(0.8, 0.95, 500, seed)[0] for seed in range(100)]
    assert outcomes.count(Outcome.differs) > 95


@pytest.mark.parametrize(("published", "failures"), [(1.0, [True] * 199 + [False]), (0.0, [False] * 49 + [True])])
def test_one_episode_does_not_contradict_a_rounded_rate(published: float, failures: list[bool]) -> None:
    assert judge(failures, published, 500).outcome is not Outcome.differs


def test_a_rate_far_from_the_published_one_does_not_agree_because_few_episodes_are_compatible() -> None:
    verdict = judge([False] * 10, 0.34, 50, margin=0.2)  # its interval, 0 to 38 %, is narrow enough, and holds 34 %
    assert verdict.outcome is Outcome.undecided
    assert judge([False] * 50, 0.34, 50, margin=0.2).outcome is Outcome.differs


def test_without_a_published_number_all_episodes_are_measured() -> None:
    assert judge([True] * 20, None, 500).outcome is Outcome.undecided
    assert judge([True] * 500, None, 500).outcome is Outcome.measured


@pytest.mark.parametrize(("published", "most", "margin"), [(0.97, 500, 0.03), (0.5, 500, 0.06), (0.5, 50, 0.18)])
def test_the_least_margin_at_which_a_true_number_agrees(published: float, most: int, margin: float) -> None:
    assert agreeing_margin(published, most) == margin


def test_the_last_look_is_after_the_largest_number_of_episodes() -> None:
    assert looks_within(60) == (10, 20, 50, 60)
    assert looks_within(5) == (5,)


def test_the_interval_is_clopper_and_pearsons() -> None:
    """Against published values of the exact interval."""
    assert exact_interval(7, 10, 0.95) == pytest.approx((0.347547, 0.933260), abs=1e-5)
    assert exact_interval(0, 10, 0.95) == pytest.approx((0.0, 0.308497), abs=1e-5)
    assert exact_interval(450, 500, 0.95) == pytest.approx((0.870295, 0.924853), abs=1e-4)


@pytest.mark.parametrize(("won", "lost", "p"), [(0, 0, 1.0), (5, 0, 1 / 32), (3, 1, 5 / 16), (0, 4, 1.0)])
def test_the_paired_test_is_mcnemars_exact_one(won: int, lost: int, p: float) -> None:
    assert paired_p_value(won, lost) == pytest.approx(p)
