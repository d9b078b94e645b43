"""A SigLIP vision tower, from transformers: pictures to one token per patch."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionTransformer

from rlrun.policies.flow.vision_sizes import PatchPositions, VisionSizes


class VisionTower(SmolVLMVisionTransformer):
    """SigLIP without padding: square pictures [M, 3, S, S] in [-1, 1] -> [M, P, D], one token per patch, row by row.

    transformers' own forward pass looks for padding in a mask, which is a wait for the device, and finds positions by
    comparing fractions in floating point, which rounds otherwise from one version to the next.
    """

    positions: PatchPositions = PatchPositions.exact

    def forward(self, pixels: Tensor) -> Tensor:
        of_patches, of_positions = self.embeddings.patch_embedding, self.embeddings.position_embedding
        patches = of_patches(pixels.to(of_patches.weight.dtype)).flatten(2).transpose(1, 2)
        places = patch_positions(self.embeddings.num_patches_per_side, self.positions, pixels.device)
        embeddings = patches + of_positions(places)
        return self.post_layernorm(self.encoder(inputs_embeds=embeddings, attention_mask=None).last_hidden_state)


def patch_positions(per_side: int, positions: PatchPositions, device: torch.device) -> Tensor:
    """Return the rows of the position embedding for the patches of a square picture, int64 [per_side ** 2].

    Shifted positions are those of transformers 4 in float32 (its issue 41190): fraction k/n of row or column k, made
    smaller by a millionth, falls into the interval before k, so that k gets position k - 1 and 0 keeps its own.
    """
    along = torch.arange(per_side, device=device)
    if positions is PatchPositions.shifted:
        along = (along - 1).clamp(min=0)
    return (along[:, None] * per_side + along).flatten()


def vision_tower(sizes: VisionSizes, positions: PatchPositions = PatchPositions.exact) -> VisionTower:
    """Return the tower with new weights."""
    tower = VisionTower(
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
    tower.positions = positions
    return tower
