"""Verdict on a published success rate: it agrees, it differs, or it is undecided after so many episodes.

The rule is sequential. It looks after fixed numbers of episodes, and each look has its share of the error of 5 %
(Bonferroni), so that looking often does not make a true number differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import comb

from rlrun.observability.records import wilson_interval

LOOKS = (10, 20, 50, 100, 200, 500)  # numbers of episodes
ERROR = 0.05  # of all looks together
MARGIN = 0.05  # a rate that is surely within it of the published one agrees


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
    low, high = wilson_interval(successes, episodes, 1 - ERROR / len(looks_within(most)))
    if published is None:
        outcome = Outcome.measured if episodes >= most else Outcome.undecided
    elif not low <= published <= high:
        outcome = Outcome.differs
    elif published - margin <= low and high <= published + margin:
        outcome = Outcome.agrees
    else:
        outcome = Outcome.undecided
    return Verdict(outcome, successes, episodes, low, high, published)


def paired_p_value(won: int, lost: int) -> float:
    """Return the one-sided p-value of McNemar's exact test that a change does not help.

    won: starts on which only the changed run succeeded; lost: those on which only the other one did.
    """
    number = won + lost
    return sum(comb(number, k) for k in range(won, number + 1)) / 2**number
