"""SmolVLANetwork: pictures, words and state to a prefix, computed once; noisy actions and the prefix to a velocity.

Names of parameters are those of LeRobot's SmolVLAPolicy. Flow time: 1 is noise, 0 is an action chunk; the velocity is
noise minus action, so that Euler steps add -1/num_steps times the velocity.
Shape legend: B rows, N pictures per row, L words, S tokens of the prefix, T = chunk_size, A = max_action_dim,
K key/value heads, E width of a head, D width of the VLM, W width of the expert.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, SmolVLMConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector

from rlrun.policies.flow.networks import (
    LayeredNetwork,
    LayeredPrefix,
    LinearInFloat32,
    LinearInOwnType,
    after_attention,
    apply_rope,
    attention,
    initialize_by_fan_in,
    prefill,
    sinusoidal,
    split_heads,
    visibility,
    vision_tower,
)
from rlrun.policies.smolvla.config import SmolVLAConfig, VLMSizes


class _Layer(LlamaDecoderLayer):
    def __init__(self, config: LlamaConfig):
        super().__init__(config, layer_idx=0)  # without transformers' cache the index has no meaning


class PrefixLayer(_Layer):
    """A layer of the VLM: hidden [B, S, D] -> (hidden, keys, values); keys (rotated) and values [B, S, K, E]."""

    def forward(self, hidden: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """positions: int64 [B, S]; mask: bool [B, S, S], True where a row's token sees a column's."""
        return prefill(self, hidden, positions, mask)


class SelfAttentionLayer(_Layer):
    """A layer of the expert whose tokens attend to the prefix, and causally to each other: [B, T, D] -> [B, T, D]."""

    def forward(self, hidden: Tensor, keys: Tensor, values: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """keys, values: the prefix's [B, S, K, E]; positions: int64 [B, T], after those of the prefix; seen: bool
        [B, S], False at padding."""
        attn = self.self_attn
        x = self.input_layernorm(hidden)
        query = apply_rope(split_heads(attn.q_proj, x, attn.head_dim), positions)
        key = torch.cat([keys, apply_rope(split_heads(attn.k_proj, x, attn.head_dim), positions)], dim=1)
        value = torch.cat([values, split_heads(attn.v_proj, x, attn.head_dim)], dim=1)
        length = hidden.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=hidden.device).tril()
        mask = torch.cat([seen[:, None].expand(-1, length, -1), causal.expand(len(seen), -1, -1)], dim=2)
        return after_attention(self, hidden, attention(query, key, value, mask))


class CrossAttentionLayer(_Layer):
    """A layer of the expert whose tokens attend to the prefix only: [B, T, D] -> [B, T, D].

    Its projections of keys and values take those of the VLM's layer.
    """

    def __init__(self, config: LlamaConfig, vlm_width: int):
        """vlm_width: K*E of the VLM."""
        super().__init__(config)
        own_width = config.num_key_value_heads * config.head_dim
        bias = config.attention_bias
        self.self_attn.k_proj = nn.Linear(vlm_width, own_width, bias=bias)
        self.self_attn.v_proj = nn.Linear(vlm_width, own_width, bias=bias)

    def forward(self, hidden: Tensor, keys: Tensor, values: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """As SelfAttentionLayer. Positions count from 0, while the keys keep the prefix's rotation (as in LeRobot)."""
        attn = self.self_attn
        x = self.input_layernorm(hidden)
        query = apply_rope(split_heads(attn.q_proj, x, attn.head_dim), positions - positions[:, :1])
        key = split_heads(attn.k_proj, keys.flatten(2), attn.head_dim)
        value = split_heads(attn.v_proj, values.flatten(2), attn.head_dim)
        return after_attention(self, hidden, attention(query, key, value, seen[:, None]))


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


def connector(vlm: VLMSizes) -> SmolVLMConnector:
    """Return the module [M, P, vision width] -> [M, P / scale_factor**2, D]."""
    return SmolVLMConnector(
        SmolVLMConfig(
            text_config={"model_type": "llama", "hidden_size": vlm.text.hidden_size, "num_attention_heads": 1},
            vision_config={"hidden_size": vlm.vision.hidden_size},
            scale_factor=vlm.scale_factor,
        )
    )


class Unread(nn.Module):
    """A matrix that exists only because official checkpoints contain it; no forward pass reads it."""

    def __init__(self, num_rows: int, num_columns: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_rows, num_columns), requires_grad=False)


class TextModel(nn.Module):
    """The language model: embeddings, its first layers, norm."""

    def __init__(self, config: SmolVLAConfig):
        super().__init__()
        text = config.vlm.text
        self.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.layers = prefix_layers(config)
        self.norm = LlamaRMSNorm(text.hidden_size, eps=text.rms_norm_eps)


class VLM(nn.Module):
    """Vision tower, connector, language model."""

    def __init__(self, config: SmolVLAConfig):
        super().__init__()
        self.vision_model = vision_tower(config.vlm.vision, config.patch_positions)
        self.connector = connector(config.vlm)
        self.text_model = TextModel(config)


class VLMWithHead(nn.Module):
    """The VLM as SmolVLM's checkpoints name it, with the head over words that SmolVLA does not use."""

    def __init__(self, config: SmolVLAConfig):
        super().__init__()
        self.model = VLM(config)
        self.lm_head = Unread(config.vlm.text.vocab_size, config.vlm.text.hidden_size)


class Expert(nn.Module):
    """The action expert: one layer for each of the VLM's, norm."""

    def __init__(self, config: SmolVLAConfig):
        super().__init__()
        self.layers = expert_layers(config)
        self.norm = LlamaRMSNorm(config.expert_width, eps=config.vlm.text.rms_norm_eps)


class VLMWithExpert(nn.Module):
    """VLM and expert."""

    def __init__(self, config: SmolVLAConfig):
        super().__init__()
        self.vlm = VLMWithHead(config)
        self.lm_expert = Expert(config)


class FlowMatching(nn.Module):
    """VLM, expert, and the projections of state, actions and flow time."""

    def __init__(self, config: SmolVLAConfig):
        super().__init__()
        width = config.expert_width
        self.vlm_with_expert = VLMWithExpert(config)
        self.state_proj = LinearInOwnType(config.max_state_dim, config.vlm.text.hidden_size)
        self.action_in_proj = LinearInOwnType(config.max_action_dim, width)
        self.action_out_proj = LinearInFloat32(width, config.max_action_dim)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)


class SmolVLANetwork(LayeredNetwork):
    """The whole network, with new weights.

    Example::

        prefix = network.prefix(pixels, image_masks, tokens, token_masks, state)
        for step in range(num_steps):
            time = torch.full((batch,), 1 - step / num_steps)
            x = x - network.velocity(x, time, prefix)[0] / num_steps
    """

    def __init__(self, config: SmolVLAConfig):
        super().__init__()
        self.config = config
        self.summary_width = 2 * config.vlm.text.hidden_size
        self.hidden_width = config.expert_width
        self.model = FlowMatching(config)
        self._initialize()

    def prefix(
        self, pixels: Tensor, image_masks: Tensor, tokens: Tensor, token_masks: Tensor, state: Tensor
    ) -> LayeredPrefix:
        """Run vision tower, connector and VLM.

        pixels: float [B, N, 3, H, W] in [-1, 1]; image_masks: bool [B, N], False for a missing picture; tokens: int64
        [B, L]; token_masks: bool [B, L], False at padding; state: float32 [B, max_state_dim], normalized and padded.
        """
        hidden, mask = self._embed(pixels, image_masks, tokens, token_masks, state)
        padded = max(self.config.prefix_length - hidden.shape[1], 0)
        sees = visibility(F.pad(mask, (0, padded)), state_at=hidden.shape[1] - 1)
        hidden = F.pad(hidden, (0, 0, 0, padded))
        mask = F.pad(mask, (0, padded))
        return LayeredPrefix.from_embeddings(self.vlm_layers(), self._vlm.text_model.norm, hidden, mask, sees)

    def velocity(self, x: Tensor, time: Tensor, prefix: LayeredPrefix) -> tuple[Tensor, Tensor]:
        """Return (velocity float32 [B, T, A], the expert's output after its norm [B, T, W]).

        x: float32 [B, T, A], actions with noise; time: float32 [B] in [0, 1].
        """
        config = self.config
        model = self.model
        embeddings = model.action_in_proj(x)
        waves = sinusoidal(time, config.expert_width, config.min_period, config.max_period).to(embeddings.dtype)
        embeddings = torch.cat([embeddings, waves[:, None].expand_as(embeddings)], dim=2)
        hidden = model.action_time_mlp_out(F.silu(model.action_time_mlp_in(embeddings)))
        positions = prefix.num_positions[:, None] + torch.arange(x.shape[1], device=x.device)
        for layer, keys, values in zip(self.expert_layers(), prefix.keys, prefix.values, strict=True):
            hidden = layer(hidden, keys, values, positions, prefix.mask)
        hidden = model.vlm_with_expert.lm_expert.norm(hidden)
        return model.action_out_proj(hidden), hidden

    def vision_layers(self) -> list[nn.Module]:
        """Return the layers of the vision tower, in the order of the forward pass."""
        return list(self._vlm.vision_model.encoder.layers)

    def vlm_layers(self) -> list[nn.Module]:
        """Return the layers of the VLM, in the order of the forward pass."""
        return list(self._vlm.text_model.layers)

    def expert_layers(self) -> list[nn.Module]:
        """Return the layers of the expert, in the order of the forward pass."""
        return list(self.model.vlm_with_expert.lm_expert.layers)

    @property
    def _vlm(self) -> VLM:
        return self.model.vlm_with_expert.vlm.model

    def _embed(
        self, pixels: Tensor, image_masks: Tensor, tokens: Tensor, token_masks: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the prefix's embeddings [B, S, D] and mask [B, S]: pictures, words, state."""
        batch, num_images = pixels.shape[:2]
        pictures = self._vlm.connector(self._vlm.vision_model(pixels.flatten(0, 1))).unflatten(0, (batch, num_images))
        # LeRobot rounds this factor to the type of the tokens, but not that of the words
        pictures = pictures * torch.tensor(pictures.shape[-1] ** 0.5, dtype=pictures.dtype, device="cpu").item()
        shown = image_masks[:, :, None].expand(pictures.shape[:3])
        pictures, shown = self._enclosed(pictures, shown)
        words = self._vlm.text_model.embed_tokens(tokens)
        words = words * math.sqrt(words.shape[-1])
        unseen = self._of_empty_cameras(batch, pixels.device)
        parts = [pictures.flatten(1, 2), *unseen, words, self.model.state_proj(state)[:, None]]
        always = [token_masks.new_ones(part.shape[:2]) for part in unseen]
        masks = [shown.flatten(1, 2), *always, token_masks, token_masks.new_ones(batch, 1)]
        dtype = torch.promote_types(pictures.dtype, parts[-1].dtype)
        return torch.cat([part.to(dtype) for part in parts], dim=1), torch.cat(masks, dim=1)

    def _enclosed(self, pictures: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
        """Put the special tokens, if the config has them, before and after each picture [B, N, P, D]."""
        if not self.config.add_image_special_tokens:
            return pictures, shown
        vlm = self.config.vlm
        batch = pictures.shape[:2]
        ids = torch.tensor([vlm.fake_image_token_id, vlm.global_image_token_id], device=pictures.device)
        special = self._vlm.text_model.embed_tokens(ids).expand(*batch, -1, -1)
        pictures = torch.cat([special, pictures, special[:, :, :1]], dim=2)
        return pictures, F.pad(shown, (2, 1), value=True)

    def _of_empty_cameras(self, batch: int, device: torch.device) -> list[Tensor]:
        """Return the embeddings of cameras that never have a picture, [B, M, D]: their special tokens, if any.

        LeRobot masks their pictures, and not the tokens around them.
        """
        vlm = self.config.vlm
        count = self.config.empty_cameras
        if not (self.config.add_image_special_tokens and count):
            return []
        ids = [vlm.fake_image_token_id, vlm.global_image_token_id, vlm.fake_image_token_id] * count
        return [self._vlm.text_model.embed_tokens(torch.tensor(ids, device=device)).expand(batch, -1, -1)]

    @torch.no_grad()
    def _initialize(self) -> None:
        initialize_by_fan_in(self)
        self._vlm.vision_model.embeddings.position_embedding.weight.normal_()
        for parameter in self._vlm.connector.parameters():  # its output is multiplied by sqrt(D)
            parameter.div_(self.config.vlm.text.hidden_size**0.5)
