"""Findings on single numbers of a data set, the usual factors between units, and the words in which both are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.data.fit_replay import NOTHING
from rlrun.data.fit_report import CompatibilityReport, listed

OTHER_UNIT = 5.0  # times as large or small
UNITS = {180 / math.pi: "degrees for radians", 1e3: "thousandths for wholes", 100.0: "hundredths for wholes"}
UNITS |= {1 / factor: " for ".join(reversed(words.split(" for "))) for factor, words in UNITS.items()}
UNIT_TOLERANCE = 0.1  # relative, between a factor that was measured and one of UNITS


@dataclass(frozen=True)
class Finding:
    """What looks wrong about one number. Findings of one kind share a line."""

    verdict: str  # in the row of the table
    reason: str = ""  # the sentence of the line; "": worth a verdict, but no warning
    change: tuple[float, float] | None = None  # factor and offset that mend it; None: none is known
    is_doubtful: bool = False  # the world's answers may show that it is no fault


def unit_of(ours: float, theirs: float) -> float | None:
    """Return how many times as large the data set's numbers are; None: they have about one size, or are zero."""
    if min(ours, theirs) <= NOTHING:
        return None
    factor = ours / theirs
    return factor if factor >= OTHER_UNIT or factor <= 1 / OTHER_UNIT else None


def near_unit(factor: float) -> float:
    """Return the usual factor that is about as large, else the factor itself."""
    near = min(UNITS, key=lambda usual: abs(math.log(usual / factor)))
    return near if abs(near / factor - 1) <= UNIT_TOLERANCE else factor


def in_words(unit: float) -> tuple[str, str]:
    """Return the verdict and the sentence on numbers that are `unit` times as large as the world's."""
    near = near_unit(unit)
    words = f" ({UNITS[near]})" if near in UNITS else ""
    return (
        f"{near:.3g} times the world's{words}",
        f"the data set's numbers are about {near:.3g} times the world's{words}",
    )


def warn_of(fit: CompatibilityReport, what: str, findings: Sequence[Finding], names: Sequence[str]) -> None:
    """Add one line for each reason, with the numbers that it holds for and the key that mends it."""
    reasons: dict[tuple[str, tuple[float, float] | None], list[int]] = {}
    for number, finding in enumerate(findings):
        if finding.reason:
            reasons.setdefault((finding.reason, finding.change), []).append(number)
    for (reason, change), numbers in reasons.items():
        which = listed([label_of(what, number, names) for number in numbers])
        fit.warnings.append(f"{which}: {reason}; {_mended(what, numbers, change)}")


def _mended(what: str, numbers: Sequence[int], change: tuple[float, float] | None) -> str:
    """Return the key that mends numbers, as it is written."""
    if change is None:
        return f"demos.keys.{what} names the feature that is taken, demos.keys.scale and offset convert numbers"
    factor, offset = change
    scaled = ", ".join(f"{what}/{number}: {factor:.6g}" for number in numbers)
    moved = ", ".join(f"{what}/{number}: {offset:.6g}" for number in numbers)
    shift = f" 'demos.keys.offset={{{moved}}}'" if offset else ""
    return f"'demos.keys.scale={{{scaled}}}'{shift} converts them"


def label_of(what: str, number: int, names: Sequence[str]) -> str:
    """Example: "action 7 (gripper_right/0)"."""
    return f"{what} {number}" + (f" ({names[number]})" if number < len(names) else "")


def span_of(values: np.ndarray) -> str:
    """Example: "-1 to 0.5"."""
    known = values[np.isfinite(values)]
    if not len(known):
        return "unknown"
    low = f"{float(known.min()):.4g}"
    high = f"{float(known.max()):.4g}"
    return low if low == high else f"{low} to {high}"


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"
