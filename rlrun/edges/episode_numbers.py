"""Numbers of an episode beside its return: what a world's `info` said, and the terms of an own reward.

A simulator adds them to the info of a chunk, an env worker sums them over the episode, and the driver makes metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NUMBERS = "numbers"  # in the info of a chunk: the numbers of its control steps, `Totals`
TERMS = "terms"  # in the info of a chunk: sum of each term of an own reward
LEFT_OUT = "left_out"  # in the info of a chunk: what cannot be a metric, and why; each name once
# prefixes of metrics and of columns of episodes.jsonl
MEAN = "info/"  # mean over the control steps that had the number
LAST = "info_end/"  # value at the last of them
TERM = "reward/"  # sum over the episode
PREFIXES = (MEAN, LAST, TERM)

Totals = dict[str, list[float]]  # by name: sum, count and last value


def add_number(totals: Totals, name: str, value: float) -> None:
    """Add one control step's number to the totals of its chunk."""
    total = totals.setdefault(name, [0.0, 0.0, 0.0])
    total[0] += value
    total[1] += 1.0
    total[2] = value


def add_totals(totals: Totals, later: Mapping[str, list[float]]) -> None:
    """Add the totals of later control steps."""
    for name, (total, count, last) in later.items():
        before = totals.get(name, (0.0, 0.0))
        totals[name] = [before[0] + total, before[1] + count, last]


class EpisodeNumbers:
    """The numbers of one row's running episode."""

    def __init__(self) -> None:
        self._totals: Totals = {}
        self._terms: dict[str, float] = {}

    def add(self, info: Mapping[str, Any]) -> None:
        """Add the info of a chunk."""
        add_totals(self._totals, info.get(NUMBERS, {}))
        for name, value in info.get(TERMS, {}).items():
            self._terms[name] = self._terms.get(name, 0.0) + value

    def report(self) -> dict[str, float]:
        """Return them by their names as metrics. Example: {"reward/reach": -1.5, "info/distance": 0.2, …}."""
        terms = {TERM + name: float(value) for name, value in self._terms.items()}
        means = {MEAN + name: total / count for name, (total, count, _) in self._totals.items()}
        return terms | means | {LAST + name: last for name, (_, _, last) in self._totals.items()}


def has_numbers(info: Mapping[str, Any]) -> bool:
    """Return whether the info of a chunk has numbers of an episode."""
    return NUMBERS in info or TERMS in info
