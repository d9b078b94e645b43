"""PiNetwork: pictures and words to a prefix, computed once; noisy actions and the prefix to a velocity.

Names of parameters are those of LeRobot's PI0Policy and PI05Policy (openpi's without "model."), except the two heads
over words, which flow matching does not read. Flow time: 1 is noise, 0 is an action chunk.
Shape legend: B rows, N pictures per row, L words, S tokens of the prefix, T = chunk_size, A = max_action_dim,
D width of the language model, W width of the expert.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GemmaConfig
from transformers.models.gemma.modeling_gemma import GemmaDecoderLayer, GemmaRMSNorm

from rlrun.policies.flow.networks import (
    LayeredNetwork,
    LayeredPrefix,
    LinearInFloat32,
    LinearInOwnType,
    apply_rope,
    attention,
    initialize_by_fan_in,
    prefill,
    sinusoidal,
    split_heads,
    token_summary,
    visibility,
    vision_tower,
)
from rlrun.policies.pi.config import GemmaSizes, PiConfig

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
        return prefill(self, hidden, positions, mask)


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
        attn = self.self_attn
        width = self.self_attn.head_dim
        x, gate = adaptive_norm(self.input_layernorm, hidden, condition)
        query = apply_rope(split_heads(attn.q_proj, x, width), positions)
        key = torch.cat([keys, apply_rope(split_heads(attn.k_proj, x, width), positions)], dim=1)
        value = torch.cat([values, split_heads(attn.v_proj, x, width)], dim=1)
        hidden = gate_residual(hidden, attn.o_proj(attention(query, key, value, mask)), gate)
        x, gate = adaptive_norm(self.post_attention_layernorm, hidden, condition)
        return gate_residual(hidden, self.mlp(x), gate)


def adaptive_norm(norm: nn.Module, x: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return (normalized x, the gate of an adaptive norm, else None)."""
    return (norm(x), None) if condition is None else norm(x, condition)


def gate_residual(x: Tensor, change: Tensor, gate: Tensor | None) -> Tensor:
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


@dataclass(frozen=True, eq=False)
class PiPrefix(LayeredPrefix):
    """The prefix of PaliGemma, and the state [B, max_state_dim], which pi0's expert reads."""

    state: Tensor

    def summary(self) -> Tensor:
        """Return the mean of the prefix, its last token and the state: float32 [B, 2 D + max_state_dim]."""
        return torch.cat([token_summary(self.hidden, self.mask), self.state.float()], dim=1)


torch.export.register_dataclass(PiPrefix)  # so that FSDP finds the tensors of an output


class VisionModel(nn.Module):
    """A level of names."""

    def __init__(self, config: PiConfig):
        super().__init__()
        self.vision_model = vision_tower(config.sizes.vision)


class Projector(nn.Module):
    """[M, P, vision width] -> [M, P, D]."""

    def __init__(self, config: PiConfig):
        super().__init__()
        self.linear = nn.Linear(config.sizes.vision.hidden_size, config.sizes.language.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class LanguageModel(nn.Module):
    """Embeddings, layers, norm."""

    def __init__(self, config: PiConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.sizes.vocab_size, config.sizes.language.width)
        self.layers = prefix_layers(config.sizes.language)
        self.norm = GemmaRMSNorm(config.sizes.language.width, eps=EPS)


class PaliGemma(nn.Module):
    """Vision tower, projector, language model."""

    def __init__(self, config: PiConfig):
        super().__init__()
        self.vision_tower = VisionModel(config)
        self.multi_modal_projector = Projector(config)
        self.language_model = LanguageModel(config)


class Expert(nn.Module):
    """The action expert: layers, norm."""

    def __init__(self, config: PiConfig):
        super().__init__()
        self.layers = expert_layers(config.sizes.expert, config.is_adaptive)
        self.norm = last_norm(config.sizes.expert.width, config.is_adaptive)


class Inner(nn.Module):
    """A level of names: what checkpoints call `model` inside a model with a head."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model: Any = model


class PaliGemmaWithExpert(nn.Module):
    """PaliGemma and expert."""

    def __init__(self, config: PiConfig):
        super().__init__()
        self.paligemma = Inner(PaliGemma(config))
        self.gemma_expert = Inner(Expert(config))


class FlowMatching(nn.Module):
    """PaliGemma, expert, and the projections of state, actions and flow time."""

    def __init__(self, config: PiConfig):
        super().__init__()
        width = config.sizes.expert.width
        self.paligemma_with_expert = PaliGemmaWithExpert(config)
        self.action_in_proj = LinearInOwnType(config.max_action_dim, width)
        self.action_out_proj = LinearInFloat32(width, config.max_action_dim)
        if config.is_adaptive:
            self.time_mlp_in = LinearInOwnType(width, width)
            self.time_mlp_out = nn.Linear(width, width)
        else:
            self.state_proj = LinearInOwnType(config.max_state_dim, width)
            self.action_time_mlp_in = nn.Linear(2 * width, width)
            self.action_time_mlp_out = nn.Linear(width, width)


class PiNetwork(LayeredNetwork):
    """The whole network, with new weights; used like SmolVLANetwork."""

    def __init__(self, config: PiConfig):
        super().__init__()
        self.config = config
        self.summary_width = 2 * config.sizes.language.width + config.max_state_dim
        self.hidden_width = config.sizes.expert.width
        self.model = FlowMatching(config)
        self._initialize()

    def prefix(
        self, pixels: Tensor, image_masks: Tensor, tokens: Tensor, token_masks: Tensor, state: Tensor
    ) -> PiPrefix:
        """Run vision tower, projector and language model.

        pixels: float [B, N, 3, H, W] in [-1, 1]; image_masks: bool [B, N], False for a missing picture; tokens: int64
        [B, L], for pi0.5 with the state among them; token_masks: bool [B, L], False at padding; state: float32
        [B, max_state_dim], normalized and padded, which pi0.5 does not read.
        """
        pali = self._paligemma
        pictures = pali.multi_modal_projector(pali.vision_tower.vision_model(pixels.flatten(0, 1)))
        pictures = pictures.unflatten(0, pixels.shape[:2])
        shown = image_masks[:, :, None].expand(pictures.shape[:3]).flatten(1, 2)
        words = pali.language_model.embed_tokens(tokens)
        hidden = torch.cat([pictures.flatten(1, 2), words * math.sqrt(words.shape[-1])], dim=1)
        mask = torch.cat([shown, token_masks], dim=1)
        sees = visibility(mask, state_at=mask.shape[1])
        return PiPrefix.from_embeddings(self.vlm_layers(), pali.language_model.norm, hidden, mask, sees, state=state)

    def velocity(self, x: Tensor, time: Tensor, prefix: PiPrefix) -> tuple[Tensor, Tensor]:
        """Return (velocity float32 [B, T, A], the expert's output for the actions after its norm [B, T, W]).

        x: float32 [B, T, A], actions with noise; time: float32 [B] in [0, 1].
        """
        hidden, condition = self._suffix(x, time, prefix)
        length = hidden.shape[1]
        positions = prefix.num_positions[:, None] + torch.arange(length, device=x.device)
        suffix_mask = torch.ones(length, length, dtype=torch.bool, device=x.device)
        suffix_mask[: length - x.shape[1], length - x.shape[1] :] = False  # the state does not see the actions
        mask = torch.cat([prefix.mask[:, None].expand(-1, length, -1), suffix_mask.expand(len(x), -1, -1)], dim=2)
        for layer, keys, values in zip(self.expert_layers(), prefix.keys, prefix.values, strict=True):
            hidden = layer(hidden, keys, values, positions, mask, condition)
        hidden = adaptive_norm(self._expert.norm, hidden, condition)[0][:, -x.shape[1] :]
        return self.model.action_out_proj(hidden), hidden

    def vision_layers(self) -> list[nn.Module]:
        """Return the layers of the vision tower, in the order of the forward pass."""
        return list(self._paligemma.vision_tower.vision_model.encoder.layers)

    def vlm_layers(self) -> list[nn.Module]:
        """Return the layers of the language model, in the order of the forward pass."""
        return list(self._paligemma.language_model.layers)

    def expert_layers(self) -> list[nn.Module]:
        """Return the layers of the expert, in the order of the forward pass."""
        return list(self._expert.layers)

    @property
    def _paligemma(self) -> PaliGemma:
        return self.model.paligemma_with_expert.paligemma.model

    @property
    def _expert(self) -> Expert:
        return self.model.paligemma_with_expert.gemma_expert.model

    def _suffix(self, x: Tensor, time: Tensor, prefix: PiPrefix) -> tuple[Tensor, Tensor | None]:
        """Return the expert's input [B, T, W], for pi0 with the state's token before it, and the condition [B, W]."""
        config = self.config
        model = self.model
        actions = model.action_in_proj(x)
        waves = sinusoidal(time, config.sizes.expert.width, config.min_period, config.max_period).to(actions.dtype)
        if config.is_adaptive:
            return actions, F.silu(model.time_mlp_out(F.silu(model.time_mlp_in(waves))))
        joined = torch.cat([actions, waves[:, None].expand_as(actions)], dim=2)
        actions = model.action_time_mlp_out(F.silu(model.action_time_mlp_in(joined)))
        return torch.cat([model.state_proj(prefix.state)[:, None], actions], dim=1), None

    @torch.no_grad()
    def _initialize(self) -> None:
        initialize_by_fan_in(self)
        self._paligemma.vision_tower.vision_model.embeddings.position_embedding.weight.normal_()
        for module in self.modules():
            if isinstance(module, AdaptiveNorm):
                module.dense.weight.mul_(0.1)  # near a plain norm at first
                module.dense.bias[2 * module.dense.in_features :] = 1.0  # open gates, so that all layers learn at once
