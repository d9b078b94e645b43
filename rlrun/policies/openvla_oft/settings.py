"""The keys of policy.openvla_oft."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rlrun.config.sections import COUNT, Range, Section, bounded, named


class ActionBounds(Enum):
    q99 = "q99"  # q01..q99 of the demonstrations map to -1..1 (OpenVLA on LIBERO and bridge)
    minmax = "minmax"  # min..max of the demonstrations map to -1..1 (ALOHA)


@dataclass
class OpenVLAOFTSettings(Section):
    """Settings for policy.kind=openvla_oft; the sizes apply to a new policy."""

    unnorm_key: str = named("rlrun")  # entry of norm_stats that un-normalizes actions
    max_prompt_length: int | None = bounded(None, Range(4))  # tokens; None: the longest instruction's length, else 50
    has_action_queries: bool = True  # learned placeholders; False: zeros, as in official checkpoints
    has_stop_token: bool = False  # append the stop token after the placeholders, as OpenVLA-OFT's fine-tuning does
    action_bounds: ActionBounds = ActionBounds.q99
    center_crop: bool = False  # crop 0.9 of the area, as OpenVLA's evaluation does
    patch_size: int = bounded(16, COUNT)
    vision_hidden_size: int = bounded(64, COUNT)  # width of each of the two towers
    vision_num_layers: int = bounded(3, Range(2))  # features are taken before the last block
    vision_num_heads: int = bounded(4, COUNT)
    llm_hidden_size: int = bounded(128, COUNT)
    llm_intermediate_size: int = bounded(256, COUNT)
    llm_num_layers: int = bounded(2, COUNT)
    llm_num_heads: int = bounded(4, COUNT)
