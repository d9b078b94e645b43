"""What a key may hold, beside its default: `horizon: int = bounded(16, COUNT)`, `suite: str = named("libero_10")`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

_KEY = "rlrun.bounds"
_NAMED = "rlrun.named"


@dataclass(frozen=True)
class Range:
    """The range low <= value <= high, without its open ends. Example: Range(0, 1, is_low_open=True) is (0, 1]."""

    low: float = -math.inf
    high: float = math.inf
    is_low_open: bool = False
    is_high_open: bool = False

    def holds(self, value: float) -> bool:
        """Return whether `value` lies inside; NaN and infinities do not."""
        above = self.low < value if self.is_low_open else self.low <= value
        below = value < self.high if self.is_high_open else value <= self.high
        return math.isfinite(value) and above and below

    def __str__(self) -> str:
        words = []
        if self.low > -math.inf:
            words.append(f"{'above' if self.is_low_open else 'at least'} {self.low:.12g}")
        if self.high < math.inf:
            words.append(f"{'below' if self.is_high_open else 'at most'} {self.high:.12g}")
        return " and ".join(words) or "a finite number"


FINITE = Range()
COUNT = Range(1)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, is_low_open=True)
SHARE = Range(0, 1)
POSITIVE_SHARE = Range(0, 1, is_low_open=True)
BELOW_ONE = Range(0, 1, is_high_open=True)


def bounded(default: Any, allowed: Range) -> Any:
    """Return a dataclass field with a range, for a number or each number of a list; None is always allowed."""
    return _field(default, {_KEY: allowed})


def named(default: Any) -> Any:
    """Return a dataclass field of a plain name or text, or a list of them: nothing that a program would open or import.

    A policy's folder may set it, see rlrun/config/policy_keys.py; other texts only the user may.
    """
    return _field(default, {_NAMED: True})


def bounds_of(section: type) -> Iterator[tuple[str, Range]]:
    """Yield name and range of each bounded field of a configuration dataclass."""
    for one in fields(section):
        if _KEY in one.metadata:
            yield one.name, one.metadata[_KEY]


def names_of(section: type) -> set[str]:
    """Return the fields of a configuration dataclass that `named` made."""
    return {one.name for one in fields(section) if _NAMED in one.metadata}


def _field(default: Any, metadata: dict[str, Any]) -> Any:
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)
