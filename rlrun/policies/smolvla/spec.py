"""SmolVLA without torch: the keys of policy.smolvla, the architecture and size of a policy, and the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, POSITIVE_SHARE, bounded
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.lerobot_config import features, numbered
from rlrun.policies.flow.spec import (
    FlowSettings,
    PatchPositions,
    count_new,
    flow_spec,
    new_vision_sizes,
    stored_json,
)
from rlrun.policies.smolvla.config import VLM_FOLDER, SmolVLAConfig, TextSizes, VLMSizes
from rlrun.policies.spec import CONFIG_FILE

PADDED = 32  # dimensions of state and actions at least, as in released policies
TOKENS_PER_SIDE = 4  # of a picture's tokens, if the patches allow it
ASSUMED_WORDS = 64  # of the vocabulary, while the instructions are unknown


@dataclass
class SmolVLASettings(FlowSettings):
    """Settings for policy.kind=smolvla; the sizes apply to a new policy."""

    patch_positions: PatchPositions | None = None  # null: as the folder says, else exact
    llm_num_heads: int = bounded(3, COUNT)
    expert_width_multiplier: float = bounded(0.75, POSITIVE_SHARE)


def new_config(
    config: RunConfig, num_actions: int, num_proprio: int, cameras: Sequence[str], vocab_size: int = ASSUMED_WORDS
) -> SmolVLAConfig:
    """Return the architecture of a new policy."""
    settings = config.policy.section(SmolVLASettings)
    size = config.env.image_size
    chunk = config.policy.num_action_chunks
    heads = settings.llm_num_heads
    text = TextSizes(
        hidden_size=settings.llm_hidden_size,
        intermediate_size=settings.llm_intermediate_size,
        num_hidden_layers=settings.llm_num_layers,
        num_attention_heads=heads,
        num_key_value_heads=1,
        head_dim=settings.llm_hidden_size // heads,
        vocab_size=vocab_size,
    )
    scale = max(1, size // settings.patch_size // TOKENS_PER_SIDE)
    return SmolVLAConfig(
        **features(cameras, size, num_proprio, num_actions),
        chunk_size=chunk,
        n_action_steps=chunk,
        max_state_dim=max(PADDED, num_proprio),
        max_action_dim=max(PADDED, num_actions),
        resize_imgs_with_padding=(size, size),
        num_steps=settings.num_flow_steps,
        vlm_model_name=VLM_FOLDER,
        num_vlm_layers=settings.llm_num_layers,
        expert_width_multiplier=settings.expert_width_multiplier,
        vlm=VLMSizes(
            vision=new_vision_sizes(settings, size),
            text=text,
            scale_factor=scale,
            fake_image_token_id=0,
            global_image_token_id=0,
        ),
        patch_positions=settings.patch_positions or PatchPositions.exact,
    )


def smolvla_config(config: RunConfig, spaces: PlannedSpaces) -> SmolVLAConfig:
    """Return the architecture; a folder that is not on this machine counts as the published one."""
    if config.policy.path is None:
        return new_config(config, spaces.num_actions, spaces.num_proprio, numbered(spaces.num_images))
    vlm = VLMSizes.from_transformers(stored_json(config, f"{VLM_FOLDER}/{CONFIG_FILE}"))
    return SmolVLAConfig.from_lerobot(stored_json(config, CONFIG_FILE), vlm)


def num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the parameters of a new policy."""
    architecture = new_config(config, spaces.num_actions, spaces.num_proprio, numbered(1))
    settings = config.policy.section(SmolVLASettings)
    return count_new(config, settings, "rlrun.policies.smolvla.network:SmolVLANetwork", architecture)


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("type") == "smolvla"


SPEC = flow_spec(
    name="smolvla",
    section=SmolVLASettings,
    recognizes=_recognizes,
    policy="rlrun.policies.smolvla.policy:SmolVLAPolicy",
    vlm_parts=("vision_model", "connector", "text_model"),
    expert_part="lm_expert",
    projections=("state_proj", "action_in_proj", "action_out_proj", "action_time_mlp_in", "action_time_mlp_out"),
    num_parameters=num_parameters,
    reads=(f"{VLM_FOLDER}/*.json",),
    to_lerobot="rlrun.policies.smolvla.folder:export_folder",
    shipped_as=lambda config: "smolvla",
)
