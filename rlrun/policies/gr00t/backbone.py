"""Qwen3-VL as GR00T runs it: square pictures and words to the hidden of the last layer that is kept, before its norm.

The layers and their names are those of transformers. Its forward passes ask the device for the sizes of pictures, which
are the same for all of them here: these passes wait for nothing.
Shape legend: M pictures, S x S pixels, G x G patches of a picture, P = G*G, V width of the tower; B rows, T tokens,
E tokens of a picture, D width of the language model, H heads, W width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig, Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    Qwen3VLTextDecoderLayer,
    Qwen3VLTextRMSNorm,
    Qwen3VLVisionBlock,
    Qwen3VLVisionPatchMerger,
)

from rlrun.policies.flow.networks import attention, split_heads
from rlrun.policies.gr00t.config import MERGED, BackboneSizes, TextSizes

TOWER_WAVELENGTH = 10_000.0


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves of heads in float32: x [..., H, W], cos and sin of angles [..., W/2]; returns the type of x."""
    first, second = x.float().chunk(2, dim=-1)
    cos = cos.unsqueeze(-2)
    sin = sin.unsqueeze(-2)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class TowerLayer(Qwen3VLVisionBlock):
    """A layer of the vision tower, whose patches attend to those of the same picture: [M, P, V] -> [M, P, V]."""

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """cos, sin: float32 [P, W/2]."""
        attn = self.attn
        (num_pictures, num_patches) = hidden.shape[:2]
        parts = attn.qkv(self.norm1(hidden)).view(num_pictures, num_patches, 3, attn.num_heads, -1)
        query, key, value = parts.unbind(2)
        query, key, value = (x.transpose(1, 2) for x in (rotated(query, cos, sin), rotated(key, cos, sin), value))
        mixed = F.scaled_dot_product_attention(query, key, value)
        hidden = hidden + attn.proj(mixed.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.norm2(hidden))


def by_blocks(x: Tensor, side: int) -> Tensor:
    """Order patches as Qwen3-VL has them, by blocks of 2 x 2, which become a token: [M, P, …] in rows -> [M, P, …].

    side: G.
    """
    blocks = x.unflatten(1, (side // MERGED, MERGED, side // MERGED, MERGED))
    return blocks.transpose(2, 3).flatten(1, 4).contiguous()


class PatchEmbedding(nn.Module):
    """The convolution over patches. It is made for two frames of a video; a picture is shown as both."""

    def __init__(self, width: int, patch_size: int):
        super().__init__()
        self.proj = nn.Conv3d(3, width, (2, patch_size, patch_size), stride=(2, patch_size, patch_size))

    def forward(self, pixels: Tensor) -> Tensor:
        """[M, 3, S, S] -> [M, P, V], row by row."""
        weight = self.proj.weight
        stride = self.proj.stride[1:]
        return F.conv2d(pixels.to(weight.dtype), weight.sum(2), self.proj.bias, stride).flatten(2).transpose(1, 2)


class Tower(nn.Module):
    """The vision tower: pictures [M, 3, S, S] in [-1, 1] -> tokens for the language model, and for its first layers."""

    def __init__(self, sizes: BackboneSizes):
        super().__init__()
        config = Qwen3VLVisionConfig(**sizes.as_transformers()["vision_config"])
        self.sizes = sizes.vision
        self.patch_embed = PatchEmbedding(config.hidden_size, sizes.vision.patch_size)
        self.pos_embed = nn.Embedding(config.num_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList(TowerLayer(config) for _ in range(config.depth))
        self.merger = Qwen3VLVisionPatchMerger(config)
        self.deepstack_merger_list = nn.ModuleList(
            Qwen3VLVisionPatchMerger(config, use_postshuffle_norm=True) for _ in sizes.vision.deepstack_visual_indexes
        )

    def forward(self, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return (tokens [M, E, D], further ones [M, E, D] that are added after each of the first layers)."""
        side = pixels.shape[-1] // self.sizes.patch_size
        patches = self.patch_embed(pixels)
        hidden = by_blocks(patches + self._positions(side).to(patches.dtype), side)
        cos, sin = self._turns(side, pixels.device)
        deep: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            hidden = block(hidden, cos, sin)
            if i in self.sizes.deepstack_visual_indexes:
                merger = self.deepstack_merger_list[len(deep)]
                deep.append(merger(hidden.flatten(0, 1)).unflatten(0, (len(pixels), -1)))
        return self.merger(hidden.flatten(0, 1)).unflatten(0, (len(pixels), -1)), deep

    def _positions(self, side: int) -> Tensor:
        """Interpolate the learned grid to that of the patches, its corners to corners: float32 [P, V], row by row."""
        table = self.pos_embed
        learned = round(self.sizes.num_position_embeddings**0.5)
        at = torch.arange(side, device=table.weight.device, dtype=torch.float32) * (learned - 1) / max(side - 1, 1)
        low = at.floor()
        lower = low.long()
        taps = torch.stack([lower, (lower + 1).clamp(max=learned - 1)])  # [2, G]
        weights = torch.stack([1 - (at - low), at - low])
        places = taps[:, None, :, None] * learned + taps[None, :, None, :]  # [2, 2, G, G]
        shares = weights[:, None, :, None] * weights[None, :, None, :]
        return (table(places) * shares[..., None]).sum((0, 1)).flatten(0, 1)

    def _turns(self, side: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the angles of rows and columns, float32 [P, W/2] each, by blocks."""
        quarter = self.sizes.hidden_size // self.sizes.num_heads // 4
        exponents = torch.arange(quarter, dtype=torch.float32, device=device) / quarter
        along = torch.arange(side, dtype=torch.float32, device=device)[:, None] / TOWER_WAVELENGTH**exponents
        rows = along[:, None].expand(-1, side, -1)
        columns = along[None].expand(side, -1, -1)
        angles = by_blocks(torch.cat([rows, columns], dim=-1).flatten(0, 1)[None], side)[0]
        return angles.cos(), angles.sin()


class TextLayer(Qwen3VLTextDecoderLayer):
    """A layer of the language model: hidden [B, T, D] -> [B, T, D]."""

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, sees: Tensor) -> Tensor:
        """cos, sin: float32 [B, T, W/2]; sees: bool [B, T, T], True where a row's token sees a column's."""
        attn = self.self_attn
        x = self.input_layernorm(hidden)
        query = rotated(attn.q_norm(split_heads(attn.q_proj, x, attn.head_dim)), cos, sin)
        key = rotated(attn.k_norm(split_heads(attn.k_proj, x, attn.head_dim)), cos, sin)
        value = split_heads(attn.v_proj, x, attn.head_dim)
        hidden = hidden + attn.o_proj(attention(query, key, value, sees))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class LanguageModel(nn.Module):
    """Embeddings, the first layers, and the norm, which checkpoints contain and nothing reads."""

    def __init__(self, sizes: BackboneSizes, num_layers: int):
        super().__init__()
        text = sizes.text
        config = Qwen3VLTextConfig(**sizes.as_transformers()["text_config"])
        self.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.layers = nn.ModuleList(TextLayer(config, layer_idx=i) for i in range(num_layers))
        self.norm = Qwen3VLTextRMSNorm(text.hidden_size, eps=text.rms_norm_eps)


class Qwen3VL(nn.Module):
    """Tower and language model, as checkpoints name them."""

    def __init__(self, sizes: BackboneSizes, num_layers: int):
        super().__init__()
        self.sizes = sizes
        self.visual = Tower(sizes)
        self.language_model = LanguageModel(sizes, num_layers)

    def forward(self, pixels: Tensor, image_masks: Tensor, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return (hidden of the last layer [B, T, D], which tokens are those of pictures that are there, bool [B, T]).

        pixels: [B, N, 3, S, S] in [-1, 1]; image_masks: bool [B, N], False for a missing picture; tokens: int64 [B, T],
        with N times E tokens of pictures in every row; mask: bool [B, T], False at padding.
        """
        pictures, deep = self.visual(pixels.flatten(0, 1))
        per_picture = pictures.shape[1]
        is_picture = tokens == self.sizes.image_token_id
        number = (is_picture.cumsum(1) - 1).clamp(0, pixels.shape[1] * per_picture - 1)  # of a token of a picture
        words = self.language_model.embed_tokens(tokens)
        hidden = torch.where(is_picture[..., None], _placed(pictures, number, words), words)
        is_shown = image_masks.gather(1, number // per_picture) & is_picture
        seen = mask & (is_shown | ~is_picture)
        length = tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=tokens.device)
        sees = (causal & seen[:, None]) | itself  # so that no softmax is empty
        cos, sin = turns(positions(is_picture, mask, per_picture), self.sizes.text)
        for i, layer in enumerate(self.language_model.layers):
            hidden = layer(hidden, cos, sin, sees)
            if i < len(deep):
                hidden = torch.where(is_picture[..., None], hidden + _placed(deep[i], number, hidden), hidden)
        return hidden, is_shown


def _placed(pictures: Tensor, number: Tensor, like: Tensor) -> Tensor:
    """Return the token of a picture at every place, [B, T, D]: pictures [B*N, E, D], number int64 [B, T]."""
    of_rows = pictures.reshape(len(number), -1, pictures.shape[-1]).to(like.dtype)
    return of_rows.gather(1, number[..., None].expand(-1, -1, of_rows.shape[-1]))


def positions(is_picture: Tensor, mask: Tensor, per_picture: int) -> Tensor:
    """Return time, row and column of every token, int64 [3, B, T]; all three are alike for a word.

    A picture stands at one time, its rows and columns count from there, and the next word follows its largest one.
    """
    side = round(per_picture**0.5)
    pictures = (is_picture & mask).long()
    words = (~is_picture & mask).long()
    before = pictures.cumsum(1) - pictures
    start = words.cumsum(1) - words + before // per_picture * side
    within = before % per_picture * pictures
    return torch.stack([start, start + within // side, start + within % side])


def turns(places: Tensor, text: TextSizes) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the angles, float32 [B, T, W/2] each: pairs of a head turn by time, row or column.

    places: int64 [3, B, T].
    """
    half = text.head_dim // 2
    exponents = torch.arange(half, dtype=torch.float32, device=places.device) * (2.0 / text.head_dim)
    angles = places[..., None].float() / text.rope_theta**exponents
    by = [0] * half
    for axis in (1, 2):
        for pair in range(axis, 3 * text.mrope_section[axis], 3):
            by[pair] = axis
    turned = torch.stack([angles[axis, ..., pair] for pair, axis in enumerate(by)], dim=-1)
    return turned.cos(), turned.sin()


class Backbone(nn.Module):
    """Levels of names: `backbone.model.model` in checkpoints."""

    def __init__(self, sizes: BackboneSizes, num_layers: int):
        super().__init__()
        self.model: Any = nn.Module()
        self.model.model = Qwen3VL(sizes, num_layers)
