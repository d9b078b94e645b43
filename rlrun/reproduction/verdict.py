"""Verdict on a published success rate: it agrees, it differs, or it is undecided after so many episodes.

The rule is sequential. It looks after fixed numbers of episodes, and each look has its share of the error of 5 %
(Bonferroni), so that looking often does not make a true number differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import comb

LOOKS = (10, 20, 50, 100, 200, 500)  # numbers of episodes
ERROR = 0.05  # of all looks together
MARGIN = 0.05  # of a rate that agrees: half of its interval's width, and its distance from the published one, at most
ROUNDING = 0.005  # published rates are rounded to a percentage, so that 100 % may have been 99.5
_HALVINGS = 50  # of the bounds of an interval


class Outcome(Enum):
    agrees = "agrees"
    differs = "differs"
    undecided = "undecided"
    measured = "measured"  # no published number was given


@dataclass(frozen=True)
class Verdict:
    """What the episodes so far say."""

    outcome: Outcome
    successes: int
    episodes: int
    low: float  # of the interval, 0..1
    high: float
    published: float | None

    @property
    def sentence(self) -> str:
        """Example: "differs: 3 of 20 = 15 % (interval 4-43 %), published 97 %"."""
        rate = f"{self.successes} of {self.episodes} = {100 * self.successes / max(1, self.episodes):.0f} %"
        interval = f"interval {100 * self.low:.0f}-{100 * self.high:.0f} %"
        published = "" if self.published is None else f", published {100 * self.published:.0f} %"
        return f"{self.outcome.value}: {rate} ({interval}){published}"


def looks_within(most: int) -> tuple[int, ...]:
    """Return the numbers of episodes after which the rule looks, with at most `most` episodes."""
    return (*(look for look in LOOKS if look < most), most)


def judge(outcomes: list[bool], published: float | None, most: int, margin: float = MARGIN) -> Verdict:
    """Return the verdict after a look. outcomes: successes so far; most: the largest number of episodes."""
    episodes = len(outcomes)
    successes = sum(outcomes)
    low, high = exact_interval(successes, episodes, 1 - ERROR / len(looks_within(most)))
    if published is None:
        outcome = Outcome.measured if episodes >= most else Outcome.undecided
    elif not low - ROUNDING <= published <= high + ROUNDING:
        outcome = Outcome.differs
    elif high - low <= 2 * margin and abs(successes / episodes - published) <= margin:
        outcome = Outcome.agrees
    else:
        outcome = Outcome.undecided
    return Verdict(outcome, successes, episodes, low, high, published)


def agreeing_margin(published: float, most: int) -> float:
    """Return the least margin, in hundredths, at which `most` episodes of exactly the published rate agree."""
    outcomes = [i < round(published * most) for i in range(most)]
    margins = (hundredths / 100 for hundredths in range(1, 101))
    agreeing = (margin for margin in margins if judge(outcomes, published, most, margin).outcome is Outcome.agrees)
    return next(agreeing, 1.0)


@cache
def exact_interval(successes: int, episodes: int, confidence: float) -> tuple[float, float]:
    """Return Clopper and Pearson's interval of a success probability, each bound in 0..1.

    It errs in at most 1 - confidence of all cases, also for the few episodes of an early look.
    """
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else _root(lambda rate: _at_least(successes, episodes, rate) < tail)
    high = 1.0 if successes == episodes else _root(lambda rate: 1 - _at_least(successes + 1, episodes, rate) > tail)
    return low, high


def _root(is_below: Callable[[float], bool]) -> float:
    """Return where in 0..1 a condition ends to hold."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


def _at_least(successes: int, episodes: int, rate: float) -> float:
    """Return the probability of so many successes or more."""
    return sum(comb(episodes, k) * rate**k * (1 - rate) ** (episodes - k) for k in range(successes, episodes + 1))


def paired_p_value(won: int, lost: int) -> float:
    """Return the one-sided p-value of McNemar's exact test that a change does not help.

    won: starts on which only the changed run succeeded; lost: those on which only the other one did.
    """
    number = won + lost
    return sum(comb(number, k) for k in range(won, number + 1)) / 2**number
