"""Layers of the language model and of the action expert: Llama's, with LeRobot's rotation and attention.

Shape legend: B rows, S tokens of the prefix, T tokens of the suffix (one per action of a chunk), H heads,
K key/value heads, E width of a head, D width of a layer.
Every parameter is used inside the layer's own `forward`, so that FSDP and checkpointing can wrap one layer at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from rlrun.policies.flow.attention import after_attention, attended, heads, prefix_pass, rotated
from rlrun.policies.smolvla.config import SmolVLAConfig


class _Layer(LlamaDecoderLayer):
    def __init__(self, config: LlamaConfig):
        super().__init__(config, layer_idx=0)  # without transformers' cache the index has no meaning


class PrefixLayer(_Layer):
    """A layer of the VLM: hidden [B, S, D] -> (hidden, keys, values); keys (rotated) and values [B, S, K, E]."""

    def forward(self, hidden: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """positions: int64 [B, S]; mask: bool [B, S, S], True where a row's token sees a column's."""
        return prefix_pass(self, hidden, positions, mask)


class SelfAttentionLayer(_Layer):
    """A layer of the expert whose tokens attend to the prefix, and causally to each other: [B, T, D] -> [B, T, D]."""

    def forward(self, hidden: Tensor, keys: Tensor, values: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """keys, values: the prefix's [B, S, K, E]; positions: int64 [B, T], after those of the prefix; seen: bool
        [B, S], False at padding."""
        attention, x = self.self_attn, self.input_layernorm(hidden)
        query = rotated(heads(attention.q_proj, x, attention.head_dim), positions)
        key = torch.cat([keys, rotated(heads(attention.k_proj, x, attention.head_dim), positions)], dim=1)
        value = torch.cat([values, heads(attention.v_proj, x, attention.head_dim)], dim=1)
        length = hidden.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=hidden.device).tril()
        mask = torch.cat([seen[:, None].expand(-1, length, -1), causal.expand(len(seen), -1, -1)], dim=2)
        return after_attention(self, hidden, attended(query, key, value, mask))


class CrossAttentionLayer(_Layer):
    """A layer of the expert whose tokens attend to the prefix only: [B, T, D] -> [B, T, D].

    Its projections of keys and values take those of the VLM's layer.
    """

    def __init__(self, config: LlamaConfig, vlm_width: int):
        """vlm_width: K*E of the VLM."""
        super().__init__(config)
        own_width, bias = config.num_key_value_heads * config.head_dim, config.attention_bias
        self.self_attn.k_proj = nn.Linear(vlm_width, own_width, bias=bias)
        self.self_attn.v_proj = nn.Linear(vlm_width, own_width, bias=bias)

    def forward(self, hidden: Tensor, keys: Tensor, values: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """As SelfAttentionLayer. Positions count from 0, while the keys keep the prefix's rotation (as in LeRobot)."""
        attention, x = self.self_attn, self.input_layernorm(hidden)
        query = rotated(heads(attention.q_proj, x, attention.head_dim), positions - positions[:, :1])
        key = heads(attention.k_proj, keys.flatten(2), attention.head_dim)
        value = heads(attention.v_proj, values.flatten(2), attention.head_dim)
        return after_attention(self, hidden, attended(query, key, value, seen[:, None]))


def prefix_layers(config: SmolVLAConfig) -> nn.ModuleList:
    """Return the VLM's layers that run."""
    text = config.vlm.text
    llama = _llama(config, text.hidden_size, text.intermediate_size)
    return nn.ModuleList(PrefixLayer(llama) for _ in range(config.num_layers))


def expert_layers(config: SmolVLAConfig) -> nn.ModuleList:
    """Return the expert's layers, one for each of the VLM's."""
    text = config.vlm.text
    llama = _llama(config, config.expert_width, config.expert_inner)
    vlm_width = text.num_key_value_heads * text.head_dim
    return nn.ModuleList(
        CrossAttentionLayer(llama, vlm_width) if config.is_cross(i) else SelfAttentionLayer(llama)
        for i in range(config.num_layers)
    )


def _llama(config: SmolVLAConfig, width: int, inner: int) -> LlamaConfig:
    text = config.vlm.text
    return LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=text.num_key_value_heads,
        head_dim=text.head_dim,
        rms_norm_eps=text.rms_norm_eps,
        num_hidden_layers=config.num_layers,
    )
