"""The architecture of a new SmolVLA, with the sizes of policy.smolvla; without torch."""

from __future__ import annotations

from collections.abc import Sequence

from rlrun.config.schema import RunConfig
from rlrun.policies.flow.vision_sizes import PatchPositions, new_vision_sizes
from rlrun.policies.lerobot.config import features
from rlrun.policies.smolvla.config import SmolVLAConfig, TextSizes, VLMSizes
from rlrun.policies.smolvla.settings import SmolVLASettings

PADDED = 32  # dimensions of state and actions at least, as in released policies
TOKENS_PER_SIDE = 4  # of a picture's tokens, if the patches allow it
ASSUMED_WORDS = 64  # of the vocabulary, while the instructions are unknown


def new_config(
    config: RunConfig, num_actions: int, num_proprio: int, cameras: Sequence[str], vocab_size: int = ASSUMED_WORDS
) -> SmolVLAConfig:
    """Return the architecture of a new policy."""
    own, size = config.policy.section(SmolVLASettings), config.env.image_size
    chunk, heads = config.policy.num_action_chunks, own.llm_num_heads
    text = TextSizes(
        hidden_size=own.llm_hidden_size,
        intermediate_size=own.llm_intermediate_size,
        num_hidden_layers=own.llm_num_layers,
        num_attention_heads=heads,
        num_key_value_heads=1,
        head_dim=own.llm_hidden_size // heads,
        vocab_size=vocab_size,
    )
    scale = max(1, size // own.patch_size // TOKENS_PER_SIDE)
    return SmolVLAConfig(
        **features(cameras, size, num_proprio, num_actions),
        chunk_size=chunk,
        n_action_steps=chunk,
        max_state_dim=max(PADDED, num_proprio),
        max_action_dim=max(PADDED, num_actions),
        resize_imgs_with_padding=(size, size),
        num_steps=own.num_flow_steps,
        vlm_model_name="vlm",
        num_vlm_layers=own.llm_num_layers,
        expert_width_multiplier=own.expert_width_multiplier,
        vlm=VLMSizes(
            vision=new_vision_sizes(own, size),
            text=text,
            scale_factor=scale,
            fake_image_token_id=0,
            global_image_token_id=0,
        ),
        patch_positions=own.patch_positions or PatchPositions.exact,
    )
