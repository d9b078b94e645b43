"""The last silences of one phase: those that are usual, and those in a row that are not yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEPT = 50
QUANTILE = 0.95
IN_A_ROW = 5  # a silence that people were told of, and that ended by itself, becomes usual when it has come so often


@dataclass
class Samples:
    """Seconds, oldest first.

    Example::

        samples = Samples()
        samples.add(8.2)
        samples.usual           # 8.2
        samples.add_odd(41.0)   # False: the first of its kind; the fifth in a row is usual
    """

    usual_s: list[float] = field(default_factory=list)
    odd_s: list[float] = field(default_factory=list)

    @property
    def usual(self) -> float | None:
        """A high quantile; of less than 20 samples it is the longest. None: there is none."""
        ordered = sorted(self.usual_s)
        return ordered[math.ceil(QUANTILE * len(ordered)) - 1] if ordered else None

    def add(self, seconds: float) -> None:
        """One that nobody was told of."""
        self.usual_s = [*self.usual_s, seconds][-KEPT:]
        self.odd_s = []

    def add_odd(self, seconds: float) -> bool:
        """One that people were told of, and that ended by itself. Returns whether it is usual from now on."""
        self.odd_s = [*self.odd_s, seconds]
        if len(self.odd_s) < IN_A_ROW:
            return False
        self.usual_s, self.odd_s = [*self.usual_s, *self.odd_s][-KEPT:], []
        return True

    def as_tree(self) -> dict[str, list[float]]:
        """For a file."""
        return {"usual_s": self.usual_s, "odd_s": self.odd_s}

    @classmethod
    def read(cls, tree: Any, ceiling_s: float) -> Samples:
        """What `as_tree` gave. What is no number of seconds, or longer than the ceiling, is left out."""
        lists = [tree.get(name) if isinstance(tree, Mapping) else None for name in ("usual_s", "odd_s")]
        kept = [[s for s in found if _is_sound(s, ceiling_s)] if isinstance(found, list) else [] for found in lists]
        return cls(kept[0][-KEPT:], kept[1][: IN_A_ROW - 1])


def _is_sound(seconds: Any, ceiling_s: float) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= ceiling_s
