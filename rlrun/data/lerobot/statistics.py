"""Statistics of a dataset, and their widening for dimensions that move rarely.

Statistics of vectors are exact; mean, standard deviation and range of images come from running sums. Quantiles of a
dimension that moves in less than one of a hundred frames are equal, or nearly so: its motion would be millions of times
too large for a flow policy, and cut off by action bins. Such a dimension is normalized by its range. Only new policies
use widened statistics; those of a given checkpoint are not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rlrun.data.lerobot import layout

if TYPE_CHECKING:
    from rlrun.data.lerobot.frames import FrameTable
    from rlrun.data.lerobot.tables import DatasetFiles


VECTOR_STATS = ("min", "max", "mean", "std", "q01", "q99")
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_NUMBERS_AT_ONCE = 2**23
NORMALIZED_LIMIT = 10.0  # largest absolute value after normalization
# A smaller range, relative to the numbers, is rounding in float32 and no motion.
RESOLUTION = 1e-6
# -1 and 1 lie half a bin beyond the range, so that action bins reproduce rest and extremes exactly.
HALF_BIN = 255 / 254
Statistics = Mapping[str, Sequence[float]]  # min, max, mean, std, q01, q99; one number per dimension


def vector_stats(rows: np.ndarray) -> dict[str, list]:
    """Return statistics of rows [M, D] as in stats.json: {"min": D numbers, …, "count": [M]}."""
    stats: dict[str, list] = {name: [] for name in ("min", "max", "mean", "std", *QUANTILES)}
    at_once = max(1, _NUMBERS_AT_ONCE // len(rows))  # columns at a time, since they are copied as float64
    for begin in range(0, rows.shape[1], at_once):
        part = rows[:, begin : begin + at_once].astype(np.float64)
        computed = {"min": part.min(0), "max": part.max(0), "mean": part.mean(0), "std": part.std(0)}
        computed |= dict(zip(QUANTILES, np.quantile(part, list(QUANTILES.values()), axis=0), strict=True))
        for name, values in computed.items():
            stats[name] += values.tolist()
    return stats | {"count": [len(rows)]}


def dataset_stats(files: DatasetFiles, frames: FrameTable) -> dict[str, dict]:
    """Return the statistics of the chosen frames, by "observation.state", "action" and the cameras' features.

    Those of vectors are always computed: LeRobot stores averages of the episodes' quantiles, which are narrower than
    the quantiles of all frames. Those of cameras are read from meta/stats.json.
    """
    stats = {layout.STATE: vector_stats(frames.state), layout.ACTION: vector_stats(frames.action)}
    cameras = [camera.key for camera in files.roles.cameras]
    return stats | {key: files.stats[key] for key in cameras if key in files.stats}


@dataclass
class ImageMoments:
    """Running sums of one camera's channels, with values in 0..1."""

    low: np.ndarray = field(default_factory=lambda: np.ones(3))
    high: np.ndarray = field(default_factory=lambda: np.zeros(3))
    total: np.ndarray = field(default_factory=lambda: np.zeros(3))  # mean over pixels, summed over frames
    squares: np.ndarray = field(default_factory=lambda: np.zeros(3))
    num_frames: int = 0

    def add(self, frames: np.ndarray) -> None:
        """Add frames, uint8 [L, H, W, 3]."""
        counts = np.stack([np.bincount(frames[..., c].ravel(), minlength=256) for c in range(3)])
        levels = np.arange(256) / 255.0
        share = counts / counts.sum(1, keepdims=True) * len(frames)
        for c in range(3):
            present = levels[counts[c] > 0]
            self.low[c] = min(self.low[c], present[0])
            self.high[c] = max(self.high[c], present[-1])
        self.total += share @ levels
        self.squares += share @ levels**2
        self.num_frames += len(frames)

    def to_stats(self) -> dict[str, list]:
        """Return the entry of stats.json: per channel, shape [3, 1, 1] as in LeRobot."""
        mean = self.total / self.num_frames
        std = np.sqrt(np.maximum(self.squares / self.num_frames - mean**2, 0.0))
        stats = {"min": self.low, "max": self.high, "mean": mean, "std": std}
        return {name: value.reshape(3, 1, 1).tolist() for name, value in stats.items()} | {"count": [self.num_frames]}


@dataclass(frozen=True, eq=False)
class WidenedStats:
    """The statistics of one vector, such that every demonstrated number is normalized to between -LIMIT and LIMIT."""

    statistics: dict[str, list[float]]
    rare: tuple[int, ...]  # dimensions whose motion is rare
    told: tuple[str, ...]  # a sentence on each rare dimension, without its name


def widen(statistics: Statistics, is_action: bool) -> WidenedStats:
    """Return statistics that preserve rare motion.

    is_action: dimensions that never move get a range as small as rounding, so that actions stay close to their value;
    policies handle such dimensions of the state themselves.
    """
    stats = {name: np.asarray(values, np.float64) for name, values in statistics.items() if name != "mask"}
    low, high, mean, std, q01, q99 = (stats[name] for name in ("min", "max", "mean", "std", "q01", "q99"))
    resolution = RESOLUTION * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    moves = high - low > resolution
    middle = (low + high) / 2
    half = (high - low) / 2
    reach = np.maximum(high - (q01 + q99) / 2, (q01 + q99) / 2 - low)
    is_rare = moves & (reach > NORMALIZED_LIMIT * (q99 - q01) / 2)
    deviation = np.maximum(std, np.maximum(high - mean, mean - low) / NORMALIZED_LIMIT)
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
    return WidenedStats({name: values.tolist() for name, values in stats.items()}, tuple(map(int, rare)), told)


def rare_motions(statistics: Statistics, what: str, names: Sequence[str] = ()) -> list[str]:
    """Return a sentence on each dimension that moves rarely. Example of `what`: "action"; names: of its dimensions."""
    kept = widen(statistics, is_action=False)
    labels = [f"{what}[{i}]" + (f" ({names[i]})" if i < len(names) else "") for i in kept.rare]
    return [f"{label} {told}" for label, told in zip(labels, kept.told, strict=True)]
