"""Statistics by which a new policy normalizes its demonstrations: a dimension that moves rarely keeps its motion.

Quantiles of a dimension that moves in less than one of a hundred frames are equal, or nearly so: its motion would be
millions of times too large for a flow policy, and cut off by action bins. Such a dimension is normalized by its range.
Only new policies are made so; the statistics of a given checkpoint stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LIMIT = 10.0  # of normalized numbers
# A range below it, relative to the numbers, is rounding in float32 and no motion.
RESOLUTION = 1e-6
# -1 and 1 lie half a bin beyond the range, so that action bins give rest and extremes back as they were.
HALF_BIN = 255 / 254
Statistics = Mapping[str, Sequence[float]]  # min, max, mean, std, q01, q99; one number per dimension


@dataclass(frozen=True, eq=False)
class Widened:
    """The statistics of one vector, such that every demonstrated number is normalized to between -LIMIT and LIMIT."""

    statistics: dict[str, list[float]]
    rare: tuple[int, ...]  # dimensions whose motion is rare
    told: tuple[str, ...]  # a sentence on each of them, without its name


def widened(found: Statistics, is_action: bool) -> Widened:
    """Return statistics that keep rare motion.

    is_action: dimensions that never move then get a range as small as rounding, to which their numbers stay close;
    policies treat such numbers of the state themselves.
    """
    stats = {name: np.asarray(values, np.float64) for name, values in found.items() if name != "mask"}
    low, high, mean, std, q01, q99 = (stats[name] for name in ("min", "max", "mean", "std", "q01", "q99"))
    resolution = RESOLUTION * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    moves = high - low > resolution
    middle, half = (low + high) / 2, (high - low) / 2
    reach = np.maximum(high - (q01 + q99) / 2, (q01 + q99) / 2 - low)
    is_rare = moves & (reach > LIMIT * (q99 - q01) / 2)
    deviation = np.maximum(std, np.maximum(high - mean, mean - low) / LIMIT)
    is_far = moves & (deviation > std)
    new_half = np.where(is_rare, half * HALF_BIN, (q99 - q01) / 2)
    new_middle = np.where(is_rare, middle, (q01 + q99) / 2)
    if is_action:
        new_half = np.where(moves, new_half, resolution)
        new_middle = np.where(moves, new_middle, middle)
        deviation = np.where(moves, deviation, np.maximum(std, resolution))
    else:
        deviation = np.where(moves, deviation, std)
    changed = is_rare | ~moves if is_action else is_rare
    stats["q01"] = np.where(changed, new_middle - new_half, q01)
    stats["q99"] = np.where(changed, new_middle + new_half, q99)
    stats["std"] = deviation
    rare = np.flatnonzero(is_rare | is_far)
    told = tuple(
        f"goes from {low[i]:.4g} to {high[i]:.4g}, its 1st and 99th percentile are {q01[i]:.4g} and {q99[i]:.4g}, its "
        f"deviation {std[i]:.4g}: it is normalized by "
        + (
            f"its range, or by a deviation of {deviation[i]:.4g}"
            if is_rare[i]
            else f"a deviation of {deviation[i]:.4g}"
        )
        for i in rare
    )
    return Widened({name: values.tolist() for name, values in stats.items()}, tuple(map(int, rare)), told)


def rare_motions(found: Statistics, what: str, names: Sequence[str] = ()) -> list[str]:
    """Return a sentence on each dimension that moves rarely. Example of `what`: "action"; names: of its dimensions."""
    kept = widened(found, is_action=False)
    labels = [f"{what}[{i}]" + (f" ({names[i]})" if i < len(names) else "") for i in kept.rare]
    return [f"{label} {told}" for label, told in zip(labels, kept.told, strict=True)]
