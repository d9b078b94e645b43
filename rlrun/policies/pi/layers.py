"""Layers of PaliGemma's language model and of the action expert: Gemma's, with norms that the flow time modulates.

Shape legend: B rows, S tokens of the prefix, T tokens of the suffix, K key/value heads, E width of a head, D width of
a layer. Every parameter is used inside the layer's own `forward`, so that FSDP can wrap one layer at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import GemmaConfig
from transformers.models.gemma.modeling_gemma import GemmaDecoderLayer, GemmaRMSNorm

from rlrun.policies.flow.attention import attended, heads, prefix_pass, rotated
from rlrun.policies.pi.config import GemmaSizes

EPS = 1e-6


class AdaptiveNorm(nn.Module):
    """RMS norm whose scale, shift and gate follow from a condition (adaRMS of openpi)."""

    def __init__(self, width: int):
        super().__init__()
        self.dense = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Return (normalized x [B, T, D], gate [B, 1, D] of what follows), computed in float32.

        condition: [B, D].
        """
        modulation = self.dense(condition.to(self.dense.weight.dtype))[:, None].float()
        scale, shift, gate = modulation.chunk(3, dim=-1)
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPS)
        return (normed * (1 + scale) + shift).to(x.dtype), gate.to(x.dtype)


class PrefixLayer(GemmaDecoderLayer):
    """A layer of PaliGemma: hidden [B, S, D] -> (hidden, keys, values); keys (rotated) and values [B, S, K, E]."""

    def __init__(self, config: GemmaConfig):
        super().__init__(config, layer_idx=0)  # without transformers' cache the index has no meaning

    def forward(self, hidden: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """positions: int64 [B, S]; mask: bool [B, S, S], True where a row's token sees a column's."""
        return prefix_pass(self, hidden, positions, mask)


class ExpertLayer(GemmaDecoderLayer):
    """A layer of the expert, whose tokens attend to the prefix and to each other: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: GemmaConfig, is_adaptive: bool):
        super().__init__(config, layer_idx=0)
        if is_adaptive:
            self.input_layernorm = AdaptiveNorm(config.hidden_size)
            self.post_attention_layernorm = AdaptiveNorm(config.hidden_size)

    def forward(
        self, hidden: Tensor, keys: Tensor, values: Tensor, positions: Tensor, mask: Tensor, condition: Tensor | None
    ) -> Tensor:
        """keys, values: the prefix's [B, S, K, E]; positions: int64 [B, T], after those of the prefix; mask: bool
        [B, T, S + T]; condition: [B, D] for adaptive norms, else None."""
        attention, width = self.self_attn, self.self_attn.head_dim
        x, gate = normed(self.input_layernorm, hidden, condition)
        query = rotated(heads(attention.q_proj, x, width), positions)
        key = torch.cat([keys, rotated(heads(attention.k_proj, x, width), positions)], dim=1)
        value = torch.cat([values, heads(attention.v_proj, x, width)], dim=1)
        hidden = gated(hidden, attention.o_proj(attended(query, key, value, mask)), gate)
        x, gate = normed(self.post_attention_layernorm, hidden, condition)
        return gated(hidden, self.mlp(x), gate)


def normed(norm: nn.Module, x: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return (normalized x, the gate of an adaptive norm, else None)."""
    return (norm(x), None) if condition is None else norm(x, condition)


def gated(x: Tensor, change: Tensor, gate: Tensor | None) -> Tensor:
    """Return x + gate * change."""
    return x + (change if gate is None else change * gate)


def prefix_layers(sizes: GemmaSizes) -> nn.ModuleList:
    """Return the layers of PaliGemma's language model."""
    return nn.ModuleList(PrefixLayer(_gemma(sizes)) for _ in range(sizes.depth))


def expert_layers(sizes: GemmaSizes, is_adaptive: bool) -> nn.ModuleList:
    """Return the layers of the expert."""
    return nn.ModuleList(ExpertLayer(_gemma(sizes), is_adaptive) for _ in range(sizes.depth))


def last_norm(width: int, is_adaptive: bool) -> nn.Module:
    """Return the norm after the last layer."""
    return AdaptiveNorm(width) if is_adaptive else GemmaRMSNorm(width, eps=EPS)


def _gemma(sizes: GemmaSizes) -> GemmaConfig:
    return GemmaConfig(
        hidden_size=sizes.width,
        intermediate_size=sizes.mlp_dim,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        num_hidden_layers=sizes.depth,
        rms_norm_eps=EPS,
        hidden_act="gelu_pytorch_tanh",
    )
