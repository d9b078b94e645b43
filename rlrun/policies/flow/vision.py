"""A SigLIP vision tower, from transformers: pictures to one token per patch."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionTransformer

from rlrun.policies.flow.vision_sizes import VisionSizes


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
