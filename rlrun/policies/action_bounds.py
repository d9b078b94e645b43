"""The bounds of actions and of the state, by statistics of demonstrations, and the bins between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

NUM_EDGES = 256
NUM_BINS = NUM_EDGES  # one between two edges each, and one that shares its centre with the highest: OpenVLA's formula
EDGES = np.linspace(-1.0, 1.0, NUM_EDGES)
CENTERS = (EDGES[:-1] + EDGES[1:]) / 2
SPAN_EPS = 1e-8  # from OpenVLA's formula
MIN_SPAN = 1e-6  # a dimension with less never moved in the demonstrations and carries no information

# of a kind of bounds, the statistics that map to -1 and 1
BOUND_NAMES = {"q99": ("q01", "q99"), "minmax": ("min", "max")}

Statistics = Mapping[str, Sequence[float]]  # q01, q99, min, max, mask; one entry per dimension


class Bounds:
    """The affine map between physical units and -1..1, per dimension.

    kind: "q99" maps q01..q99 to -1..1, "minmax" maps min..max. Raises ValueError that names an entry of `statistics`
    which is missing, short or not finite, or a dimension whose bounds are crossed.
    """

    def __init__(self, statistics: Statistics, kind: str, num_dims: int, what: str):
        low_name, high_name = BOUND_NAMES[kind]
        self.low = _entry(statistics, low_name, num_dims, what)
        self.span = _entry(statistics, high_name, num_dims, what) - self.low + SPAN_EPS
        if len(crossed := np.flatnonzero(self.span < 0)):
            raise ValueError(f"norm_stats: {what}.{low_name}[{crossed[0]}] is more than {what}.{high_name}")
        self.mask = np.asarray(statistics.get("mask", np.ones(num_dims)), bool)
        if len(self.mask) != num_dims:
            raise ValueError(f"norm_stats: {what}.mask has {len(self.mask)} entries, expected {num_dims}")

    def normalize(self, physical: np.ndarray) -> np.ndarray:
        """Return float64 [..., dims] in -1..1; dimensions without mask pass (clipped), motionless ones give 0."""
        scaled = np.where(self.mask, 2 * (physical - self.low) / self.span - 1, physical)
        return np.where(self.mask & (self.span < MIN_SPAN), 0.0, np.clip(scaled, -1, 1))

    def denormalize(self, normalized: np.ndarray) -> np.ndarray:
        """Return float32 [..., dims] in physical units."""
        physical = 0.5 * (normalized + 1) * self.span + self.low
        return np.where(self.mask, physical, normalized).astype(np.float32)


class ActionBins:
    """Converts [..., A] actions in simulator units to [..., A] tokens 0..255 and back."""

    def __init__(self, bounds: Bounds):
        self._bounds = bounds

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """Return uint8 tokens; actions outside the bounds get the outermost bins."""
        return (NUM_EDGES - np.digitize(self._bounds.normalize(actions), EDGES)).astype(np.uint8)

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Return float32 actions: the centres of the bins."""
        index = np.clip(NUM_EDGES - 1 - tokens.astype(np.int64), 0, len(CENTERS) - 1)
        return self._bounds.denormalize(CENTERS[index])


def _entry(statistics: Statistics, name: str, num_dims: int, what: str) -> np.ndarray:
    if name not in statistics:
        raise ValueError(f"norm_stats: {what}.{name} is missing (there are {sorted(statistics)})")
    values = np.asarray(statistics[name], np.float64)
    if values.shape != (num_dims,):
        raise ValueError(f"norm_stats: {what}.{name} has shape {values.shape}, the policy has {num_dims} dimensions")
    if len(wrong := np.flatnonzero(~np.isfinite(values))):
        raise ValueError(f"norm_stats: {what}.{name}[{wrong[0]}] is {values[wrong[0]]}")
    return values
