"""LeRobotConfig: the fields of config.json that LeRobot's flow-matching policies share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from rlrun.data.fit import short_name
from rlrun.policies.spec import CONFIG_FILE
from rlrun.system.local_files import read_json

STATE = "observation.state"
ACTION = "action"
IMAGES = "observation.images"
VISUAL = "VISUAL"  # LeRobot's type of a camera's feature
PREPROCESSOR = "policy_preprocessor"  # the file of what happens to observations before the policy
EMPTY_CAMERA = f"{IMAGES}.empty_camera_"  # a picture that never exists; LeRobot masks it, rlrun leaves it out
# What a damaged folder raises here; opening its policy raises the error.
_DAMAGES = (OSError, ValueError, LookupError, TypeError, AttributeError)
Features = Mapping[str, Mapping[str, Any]]  # name -> {"type", "shape"}
EPS = 1e-8  # LeRobot's: added to the standard deviation, and in place of an empty range
MIN_STATE_STD = 0.01  # of new policies, in SI units


@dataclass(frozen=True)
class LeRobotConfig:
    """Names and defaults are those of LeRobot 0.4. Raises ValueError for lengths that do not fit together."""

    input_features: Features = field(default_factory=dict)
    output_features: Features = field(default_factory=dict)
    normalization_mapping: Mapping[str, str] = field(
        default_factory=lambda: {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
    )
    n_obs_steps: int = 1
    chunk_size: int = 50  # control steps that one denoising gives
    n_action_steps: int = 50  # of these, how many are executed
    max_state_dim: int = 32  # the state is padded to it
    max_action_dim: int = 32  # actions are padded to it
    empty_cameras: int = 0
    tokenizer_max_length: int = 48
    min_period: float = 4e-3  # of the sines and cosines of the flow time
    max_period: float = 4.0

    def __post_init__(self) -> None:
        if self.n_obs_steps != 1:
            raise ValueError(f"n_obs_steps={self.n_obs_steps}: rlrun gives the policy one observation")
        if self.n_action_steps > self.chunk_size:
            raise ValueError(f"n_action_steps={self.n_action_steps} exceeds chunk_size={self.chunk_size}")

    @property
    def horizon(self) -> int:
        """Control steps of the network's own chunk."""
        return self.chunk_size

    @property
    def cameras(self) -> list[str]:
        """Names of the pictures' features, in the order of the prefix."""
        named = [name for name, feature in self.input_features.items() if feature["type"] == VISUAL]
        return [name for name in named if not name.startswith(EMPTY_CAMERA)]

    @property
    def num_proprio(self) -> int:
        """Numbers of the state before padding; 0 if the folder does not say."""
        return _size(self.input_features, STATE)

    @property
    def num_actions(self) -> int:
        """Action dimensions before padding; 0 if the folder does not say."""
        return _size(self.output_features, ACTION)

    @classmethod
    def of_features(cls, content: Mapping[str, Any]) -> LeRobotConfig:
        """Return the robot's part of a config.json, without the network's."""
        return LeRobotConfig(content.get("input_features") or {}, content.get("output_features") or {})

    @classmethod
    def read(cls, content: Mapping[str, Any], **own: Any) -> Self:
        """Read config.json as a mapping; fields that the class lacks are ignored. own: fields that are not in it."""
        names = {entry.name for entry in fields(cls)} - own.keys()
        values: dict[str, Any] = {name: value for name, value in content.items() if name in names}
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        for name in ("input_features", "output_features"):
            values[name] = values.get(name) or {}
        return cls(**values, **own)


def numbered(num_cameras: int) -> tuple[str, ...]:
    """Return names of cameras that have none, as LeRobot's base policies have them."""
    return tuple(f"camera{i}" for i in range(1, num_cameras + 1))


def features(cameras: Sequence[str], image_size: int, num_proprio: int, num_actions: int) -> dict[str, Any]:
    """Return the features of a new policy, as keyword arguments of its configuration."""
    picture = {"type": VISUAL, "shape": [3, image_size, image_size]}
    pictures = {f"{IMAGES}.{name}": picture for name in _distinct(cameras)}
    state = {STATE: {"type": "STATE", "shape": [num_proprio]}}
    return {
        "input_features": pictures | state,
        "output_features": {ACTION: {"type": "ACTION", "shape": [num_actions]}},
    }


def cameras_in(folder: Path) -> tuple[str, ...]:
    """Return the names by which a folder knows its cameras, in the order of the prefix; (): it does not say.

    A `rename_map` of its preprocessor says what the robot calls them, which is what a simulator is asked for.
    """
    with suppress(*_DAMAGES):
        described = LeRobotConfig.of_features(read_json(folder / CONFIG_FILE))
        return tuple(_renamed(folder).get(name, name) for name in described.cameras)
    return ()


def _renamed(folder: Path) -> dict[str, str]:
    """Return the robot's names of the policy's features, where its preprocessor renames them."""
    with suppress(*_DAMAGES):
        steps = read_json(folder / f"{PREPROCESSOR}.json")["steps"]
        maps = [step["config"]["rename_map"] for step in steps if step.get("config", {}).get("rename_map")]
        return {inner: outer for renaming in maps for outer, inner in renaming.items()}
    return {}


def _distinct(cameras: Sequence[str]) -> list[str]:
    """Return short names of cameras, or whole ones with _ for what separates their parts, if short ones are equal."""
    short = [short_name(name) for name in cameras]
    return short if len(set(short)) == len(short) else [re.sub(r"[./]", "_", name) for name in cameras]


def _size(features: Features, name: str) -> int:
    return int(features[name]["shape"][0]) if name in features else 0


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
    mode = "MEAN_STD"
    parts = ("mean", "std")

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
    mode = "QUANTILES"
    parts = ("q01", "q99")

    @property
    def _range(self) -> np.ndarray:
        span = self.q99 - self.q01
        return np.where(span == 0, EPS, span)

    def normalize(self, x: np.ndarray) -> np.ndarray:
        return (2.0 * (x - self.q01) / self._range - 1.0).astype(np.float32)

    def widened(self, std: float) -> Quantiles:
        """Quantiles lie about two standard deviations from the middle."""
        middle = (self.q99 + self.q01) / 2
        half = np.maximum((self.q99 - self.q01) / 2, 2 * std)
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
        return {kind: "IDENTITY" if mode is None else mode.mode for kind, mode in modes.items()}


def of_demonstrations(norm_stats: Mapping[str, Mapping[str, Any]], kind: type[Normalizer]) -> Statistics:
    """Return the statistics of a task's demonstrations (`DemonstratedTask.norm_stats`).

    A number of the state that hardly varied there counts as if it had: else reinforcement learning, which gets to other
    states, would see it a hundred times too large.
    """

    def normalizer(name: str) -> Normalizer:
        normalizer_of_part = kind(*(np.asarray(norm_stats[name][part], np.float32) for part in kind.parts))
        return normalizer_of_part.widened(MIN_STATE_STD) if name == "proprio" else normalizer_of_part

    return Statistics(state=normalizer("proprio"), action=normalizer("action"))
