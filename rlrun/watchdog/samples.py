"""The last silences of one phase: usual ones, and a row of longer ones that may become usual."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEPT = 50
QUANTILE = 0.95
IN_A_ROW = 5  # so many longer silences in a row, each of which ended by itself, become usual


@dataclass
class Samples:
    """Silences in seconds, oldest first.

    Example::

        samples = Samples()
        samples.add(8.2)
        samples.usual           # 8.2
        samples.add_outlier(41.0)   # False: the first one; the fifth in a row becomes usual
    """

    usual_s: list[float] = field(default_factory=list)
    outliers_s: list[float] = field(default_factory=list)

    @property
    def usual(self) -> float | None:
        """A high quantile, which is the longest of fewer than 20 samples; None without samples."""
        ordered = sorted(self.usual_s)
        return ordered[math.ceil(QUANTILE * len(ordered)) - 1] if ordered else None

    def add(self, seconds: float) -> None:
        """Add a silence that was too short for a warning."""
        self.usual_s = [*self.usual_s, seconds][-KEPT:]
        self.outliers_s = []

    def add_outlier(self, seconds: float) -> bool:
        """Add a silence that led to a warning and ended by itself. Returns whether it is usual from now on."""
        self.outliers_s = [*self.outliers_s, seconds]
        if len(self.outliers_s) < IN_A_ROW:
            return False
        self.usual_s, self.outliers_s = [*self.usual_s, *self.outliers_s][-KEPT:], []
        return True

    def as_tree(self) -> dict[str, list[float]]:
        """Return the samples as JSON values."""
        return {"usual_s": self.usual_s, "outliers_s": self.outliers_s}

    @classmethod
    def read(cls, tree: Any, ceiling_s: float) -> Samples:
        """Read what `as_tree` returned. Entries that are not seconds, or exceed the ceiling, are left out."""
        lists = [tree.get(name) if isinstance(tree, Mapping) else None for name in ("usual_s", "outliers_s")]
        kept = [[s for s in found if _is_valid(s, ceiling_s)] if isinstance(found, list) else [] for found in lists]
        return cls(kept[0][-KEPT:], kept[1][: IN_A_ROW - 1])


def _is_valid(seconds: Any, ceiling_s: float) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= ceiling_s
