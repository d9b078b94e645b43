"""Search for the convention at fault: each change alone, on the same starts, with the fewest episodes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil, log2
from typing import Generic, Protocol, TypeVar

from rlrun.reproduction.verdict import paired_p_value

FIRST = 4  # starts on which every change is tried
ROUNDS = ((8, 12), (3, 24), (2, 46))  # how many changes go on, and to how many starts
ERROR = 0.05  # of all tests together (Bonferroni): of each change after each round
MAX_EPISODES = 300  # of changed runs
PAIRED = 8  # of the changes that are tried first, those that pairs are made of


class Named(Protocol):
    """A change of one convention, of which two of one convention exclude each other."""

    @property
    def convention(self) -> str: ...


C = TypeVar("C", bound=Named)
Run = Callable[[tuple[C, ...], int, int], Sequence[bool] | None]  # changes, first start, end -> successes


@dataclass
class Tried(Generic[C]):
    """One change, or two together, on the first starts."""

    changes: tuple[C, ...]
    outcomes: list[bool] = field(default_factory=list)
    cannot: bool = False  # the change fits neither policy nor world

    def gain(self, unchanged: Sequence[bool]) -> int:
        """Return the starts that it won less those that it lost."""
        return sum(self.outcomes) - sum(unchanged[: len(self.outcomes)])

    def pairs(self, unchanged: Sequence[bool]) -> tuple[int, int]:
        """Return the numbers of starts on which only it succeeded, and on which only the unchanged run did."""
        pairs = list(zip(self.outcomes, unchanged, strict=False))
        won = sum(now and not before for now, before in pairs)
        lost = sum(before and not now for now, before in pairs)
        return won, lost

    def p_value(self, unchanged: Sequence[bool]) -> float:
        """Return the p-value of the paired test that it does not help."""
        return paired_p_value(*self.pairs(unchanged))


@dataclass(frozen=True)
class Search(Generic[C]):
    """The result: the change at fault first, if one was found; then the others by their gain."""

    found: Tried[C] | None
    tried: list[Tried[C]]
    unchanged: list[bool]  # successes of the unchanged run on the same starts
    episodes: int  # of changed runs


def fewest_starts(num_changes: int) -> int:
    """Return the starts that a change must win, without a loss, to be named among so many. Example: 12 of 60."""
    return ceil(log2(num_changes * len(ROUNDS) / ERROR))


class Bisection(Generic[C]):
    """Races changes against the unchanged run.

    Example::

        search = Bisection(changes, run).search()
    """

    def __init__(
        self,
        changes: Sequence[C],
        run: Run,
        unchanged: tuple[C, ...] = (),
        most: int = MAX_EPISODES,
        num_starts: int | None = None,
    ):
        """changes: the likeliest first. run: runs changes on the starts first to end; None: they cannot be tried.
        unchanged: changes that are made already, with which each further one is compared. num_starts: that differ."""
        self._changes = changes
        self._run = run
        self._made = unchanged
        self._unchanged: list[bool] = []  # successes of the unchanged run, as far as it was needed
        self._left = most
        self._last = ROUNDS[-1][1] if num_starts is None else num_starts
        self._spent = 0
        self._tried: list[Tried[C]] = []

    def search(self) -> Search[C]:
        """Try every change alone, then, if none is found, pairs of the likeliest."""
        singles = [Tried((change,)) for change in self._changes]
        found = self._race(singles)
        if found is None:
            pairs = combinations(self._changes[:PAIRED], 2)
            found = self._race([Tried(pair) for pair in pairs if pair[0].convention != pair[1].convention])
        others = [one for one in self._tried if one is not found and not one.cannot]
        others.sort(key=lambda one: -one.gain(self._unchanged) / max(1, len(one.outcomes)))
        return Search(found, others, self._unchanged, self._spent)

    def _race(self, entrants: list[Tried[C]]) -> Tried[C] | None:
        """Return the entrant that surely helps; None: none does within the episodes."""
        self._tried += entrants
        for entrant in entrants:
            self._extend(entrant, FIRST)
            for _, end in ROUNDS:
                if entrant.gain(self._unchanged) * 2 < len(entrant.outcomes) or entrant.cannot:
                    break  # it does not win half of the starts: it waits for the others
                self._extend(entrant, end)
                if self._is_sure(entrant):
                    return entrant
        for keeps, end in ROUNDS:
            entrants = [one for one in entrants if not one.cannot and one.gain(self._unchanged) > 0]
            entrants.sort(key=lambda one: -one.gain(self._unchanged))
            entrants = entrants[:keeps]
            for entrant in entrants:
                self._extend(entrant, end)
            sure = [one for one in entrants if self._is_sure(one)]
            if sure:
                return max(sure, key=lambda one: one.gain(self._unchanged))
        return None

    def _is_sure(self, entrant: Tried[C]) -> bool:
        """Return whether an entrant's gain is beyond chance, with so many changes tried and looked at so often."""
        return entrant.p_value(self._unchanged) <= ERROR / (len(self._tried) * len(ROUNDS))

    def _extend(self, entrant: Tried[C], end: int) -> None:
        """Run an entrant on further starts, as far as episodes and the unchanged run go."""
        first = len(entrant.outcomes)
        end = min(end, self._last, first + self._left)
        if entrant.cannot or end <= first:
            return
        if len(self._unchanged) < end:
            self._unchanged += self._run(self._made, len(self._unchanged), end) or []
        outcomes = self._run((*self._made, *entrant.changes), first, end)
        if outcomes is None:
            entrant.cannot = True
            return
        entrant.outcomes += outcomes
        self._left -= end - first
        self._spent += end - first
