"""Stands in for LeRobot's configurations: the names that its GrootConfig uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FeatureType(StrEnum):
    STATE, VISUAL, ACTION = "STATE", "VISUAL", "ACTION"


class NormalizationMode(StrEnum):
    IDENTITY, MEAN_STD, MIN_MAX, QUANTILES = "IDENTITY", "MEAN_STD", "MIN_MAX", "QUANTILES"


@dataclass
class PolicyFeature:
    type: FeatureType
    shape: tuple[int, ...]


@dataclass
class PreTrainedConfig:
    n_obs_steps: int = 1
    input_features: dict[str, Any] = field(default_factory=dict)
    output_features: dict[str, Any] = field(default_factory=dict)
    device: str | None = "cpu"

    def __post_init__(self) -> None:
        pass

    @staticmethod
    def register_subclass(name: str) -> Any:
        return lambda kind: kind
