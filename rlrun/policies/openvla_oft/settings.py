"""The keys of policy.openvla_oft."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rlrun.config.bounds import COUNT, Range, bounded
from rlrun.config.sealing import Section


class ActionBounds(Enum):
    q99 = "q99"  # q01..q99 of the demonstrations map to -1..1 (OpenVLA on LIBERO and bridge)
    minmax = "minmax"  # min..max do (ALOHA)


@dataclass
class OpenVLAOFTSettings(Section):
    """For policy.kind=openvla_oft; the sizes are those of a new policy."""

    unnorm_key: str = "rlrun"  # which entry of norm_stats un-normalises actions
    max_prompt_length: int | None = bounded(None, Range(4))  # tokens; None: of the longest instruction, else 50
    has_action_queries: bool = True  # learned placeholders in place of zeros; False: as official checkpoints
    has_stop_token: bool = False  # append the stop token after them, as OpenVLA-OFT's own fine-tuning does
    action_bounds: ActionBounds = ActionBounds.q99
    center_crop: bool = False  # crop 0.9 of the area, as OpenVLA's evaluation does
    patch_size: int = bounded(16, COUNT)
    vision_hidden_size: int = bounded(64, COUNT)  # of each of the two towers
    vision_num_layers: int = bounded(3, Range(2))  # the features are those before the last block
    vision_num_heads: int = bounded(4, COUNT)
    llm_hidden_size: int = bounded(128, COUNT)
    llm_intermediate_size: int = bounded(256, COUNT)
    llm_num_layers: int = bounded(2, COUNT)
    llm_num_heads: int = bounded(4, COUNT)
