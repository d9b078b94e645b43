"""Statistics of state and actions: normalization, and where LeRobot's folders hold them.

LeRobot 0.4 keeps them in the files of its processors, older versions as buffers in model.safetensors.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from rlrun.policies.lerobot.config import ACTION, PREPROCESSOR, STATE, LeRobotConfig
from rlrun.policies.weight_files import WeightFiles, inside, read_json, refuse

EPS = 1e-8  # LeRobot's: added to the standard deviation, and in place of an empty range
MIN_STATE_STD = 0.01  # of new policies, in SI units
NORMALIZER = "normalizer_processor"
BUFFERS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")  # of older versions
_BUFFER = re.compile(r"^[a-z_]+\.(?:[^.]*_)?buffer_(?P<feature>\w+)\.(?P<kind>mean|std)$")
logger = logging.getLogger(__name__)


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


def read_statistics(folder: Path, config: LeRobotConfig, weights: WeightFiles) -> Statistics:
    """Read a folder's statistics, in the layout of LeRobot 0.4 or an older one.

    Statistics that are missing or not finite (LeRobot's mark of a base model, which has seen no one's data) are None.
    Raises RunError for a normalization that rlrun lacks, and for a damaged file.
    """
    pictures = config.normalization_mapping.get("VISUAL", "IDENTITY")
    if config.cameras and pictures != "IDENTITY":
        _refuse_mode(folder, "VISUAL", pictures)
    stored = _of_processors(folder)
    found = _of_buffers(weights) if stored is None else stored
    return Statistics(
        _normalizer(folder, config, found, STATE, "STATE"), _normalizer(folder, config, found, ACTION, "ACTION")
    )


def _of_processors(folder: Path) -> dict[str, np.ndarray] | None:
    """Return the states of the preprocessor's normalizer, "action.mean" and so on; None without a preprocessor."""
    file = folder / f"{PREPROCESSOR}.json"
    if not file.is_file():
        return None
    for step in read_json(file).get("steps", []):
        if step.get("registry_name") == NORMALIZER and "state_file" in step:
            state = folder / inside(folder, step["state_file"])
            try:
                return load_file(state)
            except (OSError, SafetensorError) as error:
                refuse(f"{state} cannot be read: {error}.", "Copy the whole folder again.")
    return {}


def _of_buffers(weights: WeightFiles) -> dict[str, np.ndarray]:
    """Return the statistics that older versions keep among the weights, under one name per data set: the first."""
    found: dict[str, np.ndarray] = {}
    for name in weights.in_order():
        matched = _BUFFER.match(name) if name.startswith(BUFFERS) else None
        if matched:
            feature = matched["feature"].replace("_", ".", 1) if matched["feature"] != ACTION else ACTION
            found.setdefault(f"{feature}.{matched['kind']}", weights.read(name).float().numpy())
    return found


def _normalizer(
    folder: Path, config: LeRobotConfig, found: Mapping[str, np.ndarray], feature: str, kind: str
) -> Normalizer | None:
    mode = config.normalization_mapping.get(kind, "IDENTITY")
    if mode == "IDENTITY":
        return None
    if mode not in MODES:
        _refuse_mode(folder, kind, mode)
    one, other = (found.get(f"{feature}.{part}") for part in MODES[mode].parts)
    if one is None or other is None or not (np.isfinite(one).all() and np.isfinite(other).all()):
        logger.warning("%s has no statistics of %s: its numbers are used as they are.", folder, feature)
        return None
    return MODES[mode](one.astype(np.float32), other.astype(np.float32))


def _refuse_mode(folder: Path, kind: str, mode: str) -> NoReturn:
    refuse(
        f"The policy in {folder} normalizes {kind} by {mode}; rlrun has {' and '.join(MODES)} for states and actions, "
        "and IDENTITY.",
        "Take a checkpoint that LeRobot trained with the policy's own normalization_mapping.",
    )
