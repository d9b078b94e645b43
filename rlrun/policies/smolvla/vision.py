"""The vision tower and the connector of SmolVLM2, from transformers: pictures to tokens of the language model."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import SmolVLMConfig
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector, SmolVLMVisionTransformer

from rlrun.policies.smolvla.config import VisionSizes, VLMSizes


class VisionTower(SmolVLMVisionTransformer):
    """SigLIP without padding: [M, 3, H, W] in [-1, 1] -> [M, P, D], one token per patch, row by row.

    transformers' own forward pass looks for padding in a mask, which is a wait for the device.
    """

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = pixels.to(self.embeddings.patch_embedding.weight.dtype)
        num_rows, num_columns = (side // self.patch_size for side in pixels.shape[2:])
        seen = torch.ones(len(pixels), num_rows, num_columns, dtype=torch.bool, device=pixels.device)
        embeddings = self.embeddings(pixel_values=pixels, patch_attention_mask=seen)
        return self.post_layernorm(self.encoder(inputs_embeds=embeddings, attention_mask=None).last_hidden_state)


def vision_tower(sizes: VisionSizes) -> VisionTower:
    """Return the tower with new weights."""
    return VisionTower(
        SmolVLMVisionConfig(
            hidden_size=sizes.hidden_size,
            intermediate_size=sizes.intermediate_size,
            num_hidden_layers=sizes.num_hidden_layers,
            num_attention_heads=sizes.num_attention_heads,
            image_size=sizes.image_size,
            patch_size=sizes.patch_size,
            layer_norm_eps=sizes.layer_norm_eps,
        )
    )


def connector(vlm: VLMSizes) -> SmolVLMConnector:
    """Return the module [M, P, vision width] -> [M, P / scale_factor**2, D]."""
    return SmolVLMConnector(
        SmolVLMConfig(
            text_config={"model_type": "llama", "hidden_size": vlm.text.hidden_size, "num_attention_heads": 1},
            vision_config={"hidden_size": vlm.vision.hidden_size},
            scale_factor=vlm.scale_factor,
        )
    )
