"""What layers of language models and action experts compute alike: LeRobot's rotation, attention, a prefix's pass.

Shape legend: B rows, S tokens of the prefix, T tokens that attend, H heads, K key/value heads, E width of a head,
D width of a layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MAX_WAVELENGTH = 10_000.0  # LeRobot's, whatever rope_theta the VLM was trained with


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate heads by position (RoPE), in float32: x [B, T, H, E], positions int64 [B, T]; returns the type of x."""
    half = x.shape[-1] // 2
    exponents = torch.arange(half, dtype=torch.float32, device=x.device) * (2.0 / x.shape[-1])
    angles = (positions[..., None].float() / MAX_WAVELENGTH**exponents)[:, :, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().split(half, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attend: query [B, T, H, E], key and value [B, S, K, E], mask bool [B, 1 or T, S] -> [B, T, H*E].

    Every query must see a key. The softmax is computed in float32, in whatever type the products are.
    """
    groups = query.shape[2] // key.shape[2]
    key, value = (x.repeat_interleave(groups, dim=2).transpose(1, 2) for x in (key, value))
    mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key, value, attn_mask=mask[:, None])
    return mixed.transpose(1, 2).flatten(2)


def heads(projection: nn.Linear, x: Tensor, width: int) -> Tensor:
    """Project [B, T, ...] -> [B, T, heads, width], in the type of the projection's weights."""
    return projection(x.to(projection.weight.dtype)).unflatten(-1, (-1, width))


def prefix_pass(layer: Any, hidden: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a decoder layer of transformers; returns (hidden [B, S, D], rotated keys and values [B, S, K, E]).

    positions: int64 [B, S]; mask: bool [B, S, S]. To be called in the layer's own `forward`.
    """
    attention, x = layer.self_attn, layer.input_layernorm(hidden)
    query = rotated(heads(attention.q_proj, x, attention.head_dim), positions)
    key = rotated(heads(attention.k_proj, x, attention.head_dim), positions)
    value = heads(attention.v_proj, x, attention.head_dim)
    return after_attention(layer, hidden, attended(query, key, value, mask)), key, value


def after_attention(layer: Any, hidden: Tensor, mixed: Tensor) -> Tensor:
    """Compute what follows attention: [B, T, D] and [B, T, H*E] -> [B, T, D]."""
    out = layer.self_attn.o_proj(mixed)
    out = out + hidden.to(out.dtype)
    return out + layer.mlp(layer.post_attention_layernorm(out))
