"""The settings of the embedded world."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.sections import NOT_NEGATIVE, SHARE, Section, bounded


@dataclass
class EmbeddedConfig(Section):
    """Settings for env.simulator=embedded."""

    reward_shaping: float = bounded(0.5, NOT_NEGATIVE)  # total for start to goal, under reward=dense
    reset_spread: float = bounded(1.0, SHARE)  # 0: every episode starts alike; 1: the full range of start poses
    cans_on_floor: bool = False  # picking_up_trash: cans start on the floor instead of the table
