"""The connector of SmolVLM2, from transformers: tokens of patches to fewer tokens of the language model."""

from __future__ import annotations

from transformers import SmolVLMConfig
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector

from rlrun.policies.smolvla.config import VLMSizes


def connector(vlm: VLMSizes) -> SmolVLMConnector:
    """Return the module [M, P, vision width] -> [M, P / scale_factor**2, D]."""
    return SmolVLMConnector(
        SmolVLMConfig(
            text_config={"model_type": "llama", "hidden_size": vlm.text.hidden_size, "num_attention_heads": 1},
            vision_config={"hidden_size": vlm.vision.hidden_size},
            scale_factor=vlm.scale_factor,
        )
    )
