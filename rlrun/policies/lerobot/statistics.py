"""Normalization of state and actions by LeRobot's two ways, with the statistics of demonstrations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

EPS = 1e-8  # LeRobot's: added to the standard deviation, and in place of an empty range
MIN_STATE_STD = 0.01  # of new policies, in SI units


class Normalizer(ABC):
    """Scales the last axis. Statistics are float32 [dimensions], in simulator units."""

    mode: ClassVar[str]  # LeRobot's name
    parts: ClassVar[tuple[str, str]]  # names of the two statistics

    @abstractmethod
    def normalize(self, x: np.ndarray) -> np.ndarray:
        """Convert simulator units -> float32 in the network's."""

    @abstractmethod
    def denormalize(self, x: np.ndarray) -> np.ndarray:
        """Convert back to float32 in simulator units."""

    @abstractmethod
    def widened(self, std: float) -> Normalizer:
        """Return the same, with every standard deviation at least `std`."""

    def stored(self) -> dict[str, np.ndarray]:
        """Return the statistics by their names."""
        return {part: getattr(self, part) for part in self.parts}


@dataclass(frozen=True, eq=False)
class Standardization(Normalizer):
    """To mean 0 and standard deviation 1."""

    mean: np.ndarray
    std: np.ndarray
    mode, parts = "MEAN_STD", ("mean", "std")

    def normalize(self, x: np.ndarray) -> np.ndarray:
        return ((x - self.mean) / (self.std + EPS)).astype(np.float32)

    def widened(self, std: float) -> Standardization:
        return Standardization(self.mean, np.maximum(self.std, np.float32(std)))

    def denormalize(self, x: np.ndarray) -> np.ndarray:
        """As in LeRobot, without the EPS of `normalize`."""
        return (x * self.std + self.mean).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Quantiles(Normalizer):
    """From the 1st and 99th percentile to -1 and 1; numbers outside of them are not cut."""

    q01: np.ndarray
    q99: np.ndarray
    mode, parts = "QUANTILES", ("q01", "q99")

    @property
    def _range(self) -> np.ndarray:
        span = self.q99 - self.q01
        return np.where(span == 0, EPS, span)

    def normalize(self, x: np.ndarray) -> np.ndarray:
        return (2.0 * (x - self.q01) / self._range - 1.0).astype(np.float32)

    def widened(self, std: float) -> Quantiles:
        """Quantiles lie about two standard deviations from the middle."""
        middle, half = (self.q99 + self.q01) / 2, np.maximum((self.q99 - self.q01) / 2, 2 * std)
        return Quantiles((middle - half).astype(np.float32), (middle + half).astype(np.float32))

    def denormalize(self, x: np.ndarray) -> np.ndarray:
        return ((x + 1.0) * self._range / 2.0 + self.q01).astype(np.float32)


MODES: dict[str, type[Standardization] | type[Quantiles]] = {kind.mode: kind for kind in (Standardization, Quantiles)}


@dataclass(frozen=True)
class Statistics:
    """The normalizers of a policy; None: the numbers are used as they are."""

    state: Normalizer | None = None
    action: Normalizer | None = None

    @property
    def mapping(self) -> dict[str, str]:
        """LeRobot's normalization_mapping."""
        modes = {"VISUAL": None, "STATE": self.state, "ACTION": self.action}
        return {kind: "IDENTITY" if found is None else found.mode for kind, found in modes.items()}


def of_demonstrations(norm_stats: Mapping[str, Mapping[str, Any]], kind: type[Normalizer]) -> Statistics:
    """Return the statistics of a task's demonstrations (`DemonstratedTask.norm_stats`).

    A number of the state that hardly varied there counts as if it had: else reinforcement learning, which gets to other
    states, would see it a hundred times too large.
    """

    def normalizer(name: str) -> Normalizer:
        found = kind(*(np.asarray(norm_stats[name][part], np.float32) for part in kind.parts))
        return found.widened(MIN_STATE_STD) if name == "proprio" else found

    return Statistics(state=normalizer("proprio"), action=normalizer("action"))
