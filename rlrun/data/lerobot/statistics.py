"""Statistics of a dataset: exact for vectors; mean, standard deviation and range of images from running sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rlrun.data.lerobot import layout

if TYPE_CHECKING:
    from rlrun.data.lerobot.frames import Frames
    from rlrun.data.lerobot.tables import DatasetFiles

OF_VECTORS = ("min", "max", "mean", "std", "q01", "q99")
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_NUMBERS_AT_ONCE = 2**23


def of_vectors(rows: np.ndarray) -> dict[str, list]:
    """Return statistics of rows [M, D] as in stats.json: {"min": D numbers, …, "count": [M]}."""
    stats: dict[str, list] = {name: [] for name in ("min", "max", "mean", "std", *QUANTILES)}
    at_once = max(1, _NUMBERS_AT_ONCE // len(rows))  # of the D columns, since they are copied as float64
    for begin in range(0, rows.shape[1], at_once):
        part = rows[:, begin : begin + at_once].astype(np.float64)
        found = {"min": part.min(0), "max": part.max(0), "mean": part.mean(0), "std": part.std(0)}
        found |= dict(zip(QUANTILES, np.quantile(part, list(QUANTILES.values()), axis=0), strict=True))
        for name, values in found.items():
            stats[name] += values.tolist()
    return stats | {"count": [len(rows)]}


def of_dataset(files: DatasetFiles, frames: Frames) -> dict[str, dict]:
    """Return the statistics of the chosen frames, by "observation.state", "action" and the cameras' features.

    Those of vectors are always computed: LeRobot stores averages of the episodes' quantiles, which are narrower than
    the quantiles of all frames. Those of cameras are as meta/stats.json has them.
    """
    stats = {layout.STATE: of_vectors(frames.state), layout.ACTION: of_vectors(frames.action)}
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
            self.low[c], self.high[c] = min(self.low[c], present[0]), max(self.high[c], present[-1])
        self.total += share @ levels
        self.squares += share @ levels**2
        self.num_frames += len(frames)

    def to_stats(self) -> dict[str, list]:
        """Return the entry of stats.json: per channel, shape [3, 1, 1] as in LeRobot."""
        mean = self.total / self.num_frames
        std = np.sqrt(np.maximum(self.squares / self.num_frames - mean**2, 0.0))
        stats = {"min": self.low, "max": self.high, "mean": mean, "std": std}
        return {name: value.reshape(3, 1, 1).tolist() for name, value in stats.items()} | {"count": [self.num_frames]}
