"""The sizes of a vision tower, read from folders or chosen for a new policy; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rlrun.policies.flow.settings import FlowSettings

MLP_RATIO = 4  # of a new tower


class PatchPositions(Enum):
    """Which position embedding a patch of a picture gets."""

    exact = "exact"  # row and column of the patch
    shifted = "shifted"  # one less each, 0 stays, as in trainings in float32 by LeRobot 0.4 with transformers 4


@dataclass(frozen=True)
class VisionSizes:
    """Sizes of a SigLIP tower; the defaults are those of SmolVLM2-500M."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    image_size: int = 512  # pixels per side
    patch_size: int = 16
    layer_norm_eps: float = 1e-6


def new_vision_sizes(own: FlowSettings, image_size: int) -> VisionSizes:
    """Return the sizes of a new policy's tower. image_size: pixels per side."""
    return VisionSizes(
        hidden_size=own.vision_hidden_size,
        intermediate_size=MLP_RATIO * own.vision_hidden_size,
        num_hidden_layers=own.vision_num_layers,
        num_attention_heads=own.vision_num_heads,
        image_size=image_size,
        patch_size=own.patch_size,
    )
