"""Statistics of a dataset: exact for vectors; mean, standard deviation and range of images from running sums."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def of_vectors(rows: np.ndarray) -> dict[str, list]:
    """Return statistics of rows [M, D] as in stats.json: {"min": D numbers, …, "count": [M]}."""
    rows = rows.astype(np.float64)
    stats = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    stats |= dict(zip(QUANTILES, np.quantile(rows, list(QUANTILES.values()), axis=0), strict=True))
    return {name: value.tolist() for name, value in stats.items()} | {"count": [len(rows)]}


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
