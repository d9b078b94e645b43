"""Checks the statistics of an OpenVLA-OFT folder when it is opened, alike to act and to train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rlrun.system.errors import ExitStatus, RunError

NUM_EDGES = 256
EDGES = np.linspace(-1.0, 1.0, NUM_EDGES)
CENTERS = (EDGES[:-1] + EDGES[1:]) / 2
SPAN_EPS = 1e-8  # from OpenVLA's formula
MIN_SPAN = 1e-6  # a dimension with less never moved in the demonstrations and carries no information

# of a kind of bounds, the statistics that map to -1 and 1
BOUND_NAMES = {"q99": ("q01", "q99"), "minmax": ("min", "max")}

Statistics = Mapping[str, Sequence[float]]  # q01, q99, min, max, mask; one entry per dimension


class Bounds:
    """The affine map between physical units and -1..1, per dimension.

    kind: "q99" maps q01..q99 to -1..1, "minmax" maps min..max. Raises ValueError that names a missing or
    short entry of `statistics`.
    """

    def __init__(self, statistics: Statistics, kind: str, num_dims: int, what: str):
        low_name, high_name = BOUND_NAMES[kind]
        self.low = _entry(statistics, low_name, num_dims, what)
        self.span = _entry(statistics, high_name, num_dims, what) - self.low + SPAN_EPS
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
    return values


PROJECTOR = "proprio_projector.fc1.weight"  # [D, P]: its second size is the number of proprioceptive values
FROM_TRAINING = "Take dataset_statistics.json from the training of this checkpoint"


@dataclass(frozen=True)
class StoredStatistics:
    """One entry of norm_stats: {"action": {"q01", "q99", "min", "max", "mask"}, "proprio": {...}}."""

    file: Path  # that holds it
    key: str  # its name in norm_stats
    values: object
    bounds: str  # "q99" or "minmax", as policy.openvla_oft.action_bounds

    def num_actions(self) -> int:
        """Return the action dimensions. Raises RunError that names what is missing, short or not finite."""
        size, found = self._checked("action"), self._part("action")
        mask = found.get("mask", [True] * size)
        if not isinstance(mask, list) or len(mask) != size or not all(isinstance(value, bool) for value in mask):
            has = f"{len(mask)} values" if isinstance(mask, list) else f"a {type(mask).__name__}"
            self._refuse(
                f"action.mask has {has}; there are {size} action dimensions, each of which is true or false",
                f"{FROM_TRAINING}, or write one value per dimension: false where actions are used as they are.",
            )
        return size

    def num_proprio(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the proprioceptive values; raises as `num_actions`. shapes: of the folder's weights."""
        has_projector = len(shapes.get(PROJECTOR, ())) == 2
        if not isinstance(self.values, dict) or "proprio" not in self.values:
            self._refuse(
                "proprio is missing",
                f"{FROM_TRAINING}: its weights read proprioception, so that policy.use_proprio=false is no way out."
                if has_projector
                else "Set policy.use_proprio=false.",
            )
        size = self._checked("proprio")
        if has_projector and shapes[PROJECTOR][1] != size:
            self._refuse(
                f"proprio has {size} values, and the weights read {shapes[PROJECTOR][1]} ({PROJECTOR})",
                f"{FROM_TRAINING}: these are of another robot.",
            )
        return size

    def _checked(self, part: str) -> int:
        """Return the number of dimensions of a part whose bounds are whole."""
        found, names = self._part(part), BOUND_NAMES[self.bounds]
        if missing := [name for name in names if name not in found]:
            others = [kind for kind, bounds in BOUND_NAMES.items() if all(name in found for name in bounds)]
            own = [f"Set policy.openvla_oft.action_bounds={kind} if it was trained with these." for kind in others]
            self._refuse(
                f"{part}.{missing[0]} is missing (there are {', '.join(map(str, sorted(found)))})",
                " ".join([*own, f"{FROM_TRAINING}, which has it."]),
            )
        low, high = (self._numbers(part, name, found[name]) for name in names)
        if len(low) != len(high):
            self._refuse(f"{part}.{names[0]} has {len(low)} numbers, {names[1]} {len(high)}", f"{FROM_TRAINING}.")
        if len(crossed := np.flatnonzero(low > high)):
            at = crossed[0]
            self._refuse(
                f"{part}.{names[0]}[{at}] is {low[at]:g}, more than {part}.{names[1]}[{at}], {high[at]:g}",
                f"{FROM_TRAINING}.",
            )
        return len(low)

    def _part(self, part: str) -> dict[str, Any]:
        found = self.values.get(part) if isinstance(self.values, dict) else None
        if not isinstance(found, dict):
            self._refuse(f"{part} is missing, or holds no statistics by name", f"{FROM_TRAINING}.")
        return found

    def _numbers(self, part: str, name: str, found: object) -> np.ndarray:
        try:
            values = np.asarray(found, np.float64)
        except (TypeError, ValueError, OverflowError):
            values = np.zeros(0)
        if values.ndim != 1 or not len(values):
            self._refuse(f"{part}.{name} is no list of numbers", f"{FROM_TRAINING}.")
        if len(wrong := np.flatnonzero(~np.isfinite(values))):
            self._refuse(
                f"{part}.{name}[{wrong[0]}] is {values[wrong[0]]}, and {len(wrong) - 1} more are not finite",
                f"{FROM_TRAINING}; if they are so there too, compute them again without the episodes that hold NaN.",
            )
        return values

    def _refuse(self, cause: str, remedy: str) -> NoReturn:
        raise RunError(
            f"The statistics {self.key!r} in {self.file} cannot be used.",
            key="policy.path",
            value=str(self.file.parent),
            cause=f"norm_stats[{self.key!r}]: {cause}.",
            remedy=remedy,
            exit_status=ExitStatus.bad_input,
        )
