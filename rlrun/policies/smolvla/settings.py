"""The keys of policy.smolvla."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.sections import COUNT, POSITIVE_SHARE, bounded
from rlrun.policies.flow.settings import FlowSettings
from rlrun.policies.flow.vision_sizes import PatchPositions


@dataclass
class SmolVLASettings(FlowSettings):
    """Settings for policy.kind=smolvla; the sizes apply to a new policy."""

    patch_positions: PatchPositions | None = None  # null: as the folder says, else exact
    llm_num_heads: int = bounded(3, COUNT)
    expert_width_multiplier: float = bounded(0.75, POSITIVE_SHARE)
