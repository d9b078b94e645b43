"""The keys of policy.pi."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rlrun.config.sections import COUNT, bounded
from rlrun.policies.flow.settings import FlowSettings


class Version(Enum):
    """The policies of this kind; names are those of LeRobot's config.json."""

    pi0 = "pi0"
    pi05 = "pi05"


class StateInPrompt(Enum):
    """The numbers in pi0.5's prompt."""

    real = "real"  # those of the state, as in openpi and LeRobot from 0.5 on
    padded = "padded"  # those of the state padded with zeros, as in LeRobot 0.4
    none = "none"  # no state, as in openpi's pi05_libero


@dataclass
class PiSettings(FlowSettings):
    """Settings for policy.kind=pi; version and sizes apply to a new policy."""

    version: Version = Version.pi05
    state_in_prompt: StateInPrompt | None = None  # of pi0.5; null: as the folder says, else real
    norm_stats_path: str | None = None  # norm_stats.json of a folder of openpi's, if it has none or several in assets/
    llm_num_heads: int = bounded(4, COUNT)
    expert_hidden_size: int = bounded(72, COUNT)
    expert_intermediate_size: int = bounded(192, COUNT)
