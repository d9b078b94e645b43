"""OpenVLAOFT: from images, a prompt and proprioception to logits over 256 action bins and a value.

Shape legend: B rows, N images per row, P patches per image, L prompt tokens, K = C*A action tokens,
S = L + N*P (+1 with proprioception) + K (+1 with the stop token), D width of the language model.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, LlamaForCausalLM, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput

from rlrun.config.schema import AttentionKernel
from rlrun.policies.distributions import LAST_VALUE_STD, ValueHead, linear_in_float32
from rlrun.policies.openvla_oft.attention import ATTENTION, Packing, attend
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig, TowerShape

LAYER_NORM_EPS = 1e-6
OFFICIAL_ARCHITECTURE = "OpenVLAForActionPrediction"
NEW_PARTS = ("value_head.", "proprio_projector.", "action_queries.")


class Attention(nn.Module):
    """Multi-head self-attention without a mask."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.kernel = AttentionKernel.sdpa
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        return self.proj(attend(self.kernel, query, key, value).reshape(batch, length, width))


class Mlp(nn.Module):
    """Two linear layers with the exact GELU between them, applied to the last axis."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    """Uses the name `scale_factor` instead of timm's `gamma`, because transformers renames every `gamma`."""

    def __init__(self, width: int):
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


class VisionBlock(GradientCheckpointingLayer):
    """[B, P, D] -> [B, P, D]: pre-norm attention and MLP; layer scale where the tower has it (DINOv2)."""

    def __init__(self, shape: TowerShape):
        super().__init__()
        width = shape.hidden_size
        self.norm1 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.attn = Attention(width, shape.num_heads)
        self.ls1 = LayerScale(width) if shape.has_layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(width, shape.mlp_size)
        self.ls2 = LayerScale(width) if shape.has_layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class AttentionPool(nn.Module):
    """SigLIP's pooling head: official checkpoints contain its weights, but it is never called."""

    def __init__(self, width: int, mlp_size: int):
        super().__init__()
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(width, mlp_size)


class PatchEmbed(nn.Module):
    """[B, 3, H, W] -> [B, P, D]: one projection per square patch, row by row."""

    def __init__(self, width: int, patch_size: int):
        super().__init__()
        self.proj = nn.Conv2d(3, width, kernel_size=patch_size, stride=patch_size)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.proj(pixels).flatten(2).transpose(1, 2)


class VisionTower(nn.Module):
    """[B, 3, H, W] normalized pixels -> [B, P, D]: the patches after the last but one block, without final norm."""

    def __init__(self, shape: TowerShape, patch_size: int, num_patches: int):
        super().__init__()
        width = shape.hidden_size
        if shape.has_class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        if shape.num_register_tokens:
            self.reg_token = nn.Parameter(torch.zeros(1, shape.num_register_tokens, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches, width))
        self.patch_embed = PatchEmbed(width, patch_size)
        self.blocks = nn.ModuleList(VisionBlock(shape) for _ in range(shape.num_layers))
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        if shape.has_attention_pool:
            self.attn_pool = AttentionPool(width, shape.mlp_size)
        self.shape = shape

    def dead_modules(self) -> list[nn.Module]:
        """Return the modules that exist only for official checkpoints and never run."""
        return [self.blocks[-1], self.norm] + ([self.attn_pool] if self.shape.has_attention_pool else [])

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patch_embed(pixels) + self.pos_embed
        prefix = []
        if self.shape.has_class_token:
            prefix.append(self.cls_token)
        if self.shape.num_register_tokens:
            prefix.append(self.reg_token)
        x = torch.cat([part.expand(len(patches), -1, -1) for part in prefix] + [patches], dim=1)
        for block in self.blocks[:-1]:
            x = block(x)
        return x[:, x.shape[1] - patches.shape[1] :]


class VisionBackbone(nn.Module):
    """[B, 6, H, W] -> [B, P, D1 + D2]: DINOv2 gets the first three channels, SigLIP the last three."""

    def __init__(self, shapes: list[TowerShape], patch_size: int, num_patches: int):
        super().__init__()
        self.featurizer = VisionTower(shapes[0], patch_size, num_patches)
        self.fused_featurizer = VisionTower(shapes[1], patch_size, num_patches)

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.cat([self.featurizer(pixels[:, :3]), self.fused_featurizer(pixels[:, 3:])], dim=2)


@dataclass
class PolicyOutput(ModelOutput):
    """action_logits: float32 [B, K, 256] over the action bins only; value: float32 [B], None without a value head."""

    action_logits: Tensor | None = None
    value: Tensor | None = None


class Projector(nn.Module):
    """[B, P, vision width] -> [B, P, D]."""

    def __init__(self, vision_width: int, width: int):
        super().__init__()
        self.fc1 = nn.Linear(vision_width, 4 * vision_width)
        self.fc2 = nn.Linear(4 * vision_width, width)
        self.fc3 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(x)))))


class ProprioProjector(nn.Module):
    """[B, num_proprio] in [-1, 1] -> [B, 1, D]: one token."""

    def __init__(self, num_proprio: int, width: int):
        super().__init__()
        self.fc1 = nn.Linear(num_proprio, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, proprio: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(proprio)))[:, None]


class ActionQueries(nn.Module):
    """Learned placeholders [1, K, D]; official checkpoints were trained with zeros."""

    def __init__(self, num_tokens: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, num_tokens, width))

    def forward(self, batch: int) -> Tensor:
        return self.weight.expand(batch, -1, -1)


class OpenVLAOFT(PreTrainedModel):
    """Parameters carry the official names; value head, proprioception and queries are optional additions."""

    config_class = OpenVLAOFTConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["LlamaDecoderLayer", "VisionBlock"]

    def __init__(self, config: OpenVLAOFTConfig):
        super().__init__(config)
        shapes = config.tower_shapes
        width = config.text_config.hidden_size
        self.vision_backbone = VisionBackbone(shapes, config.patch_size, config.num_patches)
        self.projector = Projector(sum(shape.hidden_size for shape in shapes), width)
        config.text_config._attn_implementation = ATTENTION[AttentionKernel.sdpa]  # bidirectional, with packed rows
        self.language_model = LlamaForCausalLM(config.text_config)
        self.proprio_projector = ProprioProjector(config.num_proprio, width) if config.num_proprio else None
        self.action_queries = ActionQueries(config.num_action_tokens, width) if config.has_action_queries else None
        self.value_head = ValueHead(width, config.value_hidden_sizes) if config.value_hidden_sizes else None
        self.freeze_dead_weights()
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: np.ndarray | None,
        pixel_values: Tensor,
        proprio: Tensor | None = None,
    ) -> PolicyOutput:
        """Run one pass.

        input_ids: int64 [B, L]: BOS, then padding, then the prompt, so that the last token is at the end.
        attention_mask: bool [B, L], False at padding, which the language model does not get; None: no padding.
        pixel_values: [B, 6*N, H, W], normalized for each tower.
        proprio: [B, num_proprio] in [-1, 1]; required exactly if the config has num_proprio.
        """
        if (proprio is None) != (self.proprio_projector is None):
            raise ValueError(
                f"policy built with num_proprio={self.config.num_proprio}, but proprio is "
                f"{'missing' if proprio is None else 'given'}; set policy.use_proprio as the checkpoint has it"
            )
        embeds, num_placed = self._embed(input_ids, pixel_values, proprio)
        hidden = self._hidden(embeds, attention_mask, num_placed)
        first = num_placed + input_ids.shape[1] - 1  # the last prompt token predicts the first action token
        end = self.config.action_tokens_end
        weight = self.language_model.lm_head.weight[end - self.config.n_action_bins : end]
        logits = linear_in_float32(hidden[:, first : first + self.config.num_action_tokens], weight)
        value = None if self.value_head is None else self.value_head(hidden[:, first])
        return PolicyOutput(action_logits=logits, value=value)

    def use_attention(self, kernel: AttentionKernel) -> None:
        """Set the attention kernel of the towers and the language model from the next pass on."""
        self.language_model.config._attn_implementation = ATTENTION[kernel]
        for module in self.vision_backbone.modules():
            if isinstance(module, Attention):
                module.kernel = kernel

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OpenVLAOFT:
        """Move or cast, but keep rotary frequencies in float32: in bfloat16, far positions are off by radians."""
        super()._apply(fn, recurse)
        rotary = self.language_model.model.rotary_emb
        if rotary.inv_freq.dtype != torch.float32:
            exact, _ = rotary.compute_default_rope_parameters(rotary.config)
            rotary.inv_freq = exact.to(rotary.inv_freq.device)
            rotary.original_inv_freq = exact.to(rotary.inv_freq.device)
        return self

    def restore_buffers(self) -> None:
        """Fill buffers that no checkpoint contains, after memory was given to a model on the meta device."""
        self._init_weights(self.language_model.model.rotary_emb)

    def _embed(self, input_ids: Tensor, pixel_values: Tensor, proprio: Tensor | None) -> tuple[Tensor, int]:
        """Return [B, S, D] in the order BOS, patches, proprioception, prompt, placeholders, stop; and the number of
        tokens between BOS and prompt."""
        batch = len(input_ids)
        size = pixel_values.shape[-2:]
        patches = self.projector(self.vision_backbone(pixel_values.reshape(-1, 6, *size)))
        placed = [patches.reshape(batch, -1, patches.shape[-1])]
        if self.proprio_projector is not None:
            placed.append(self.proprio_projector(proprio))
        if self.config.has_stop_token:
            input_ids = F.pad(input_ids, (0, 1), value=self.config.stop_token_id)
        text = self.language_model.model.embed_tokens(input_ids)
        prompt_end = text.shape[1] - int(self.config.has_stop_token)
        if self.action_queries is not None:
            placeholders = self.action_queries(batch)
        else:
            placeholders = text.new_zeros(batch, self.config.num_action_tokens, text.shape[-1])
        parts = [text[:, :1], *placed, text[:, 1:prompt_end], placeholders, text[:, prompt_end:]]
        return torch.cat(parts, dim=1), sum(part.shape[1] for part in placed)

    def _hidden(self, embeds: Tensor, attention_mask: np.ndarray | None, num_placed: int) -> Tensor:
        """Return [B, S, D] of the language model; rows with padding run as one packed sequence, without the padding."""
        llama = self.language_model.model
        if attention_mask is None:
            positions = torch.arange(embeds.shape[1], device=embeds.device)[None]
            return llama(inputs_embeds=embeds, position_ids=positions, use_cache=False).last_hidden_state
        seen = torch.ones(embeds.shape[:2], dtype=torch.bool)
        seen[:, num_placed + 1 : num_placed + attention_mask.shape[1]] = torch.from_numpy(attention_mask[:, 1:])
        packing = Packing.from_mask(seen, embeds.device)
        packed = llama(
            inputs_embeds=packing.pack(embeds),
            position_ids=packing.positions,
            use_cache=False,
            segments=packing.segments,
        ).last_hidden_state
        return packing.unpack(packed)

    def stacks(self) -> list[list[nn.Module]]:
        """Return the blocks of both towers and of the language model, in the order of the forward pass."""
        towers = (self.vision_backbone.featurizer, self.vision_backbone.fused_featurizer)
        return [*(list(tower.blocks[:-1]) for tower in towers), list(self.language_model.model.layers)]

    def frozen_names(self) -> set[str]:
        """Return the parameters that no forward pass reads: not trained, not sent to rollout workers."""
        dead = {id(parameter) for module in self._dead_modules() for parameter in module.parameters()}
        return {name for name, parameter in self.named_parameters() if id(parameter) in dead}

    def freeze_dead_weights(self) -> None:
        """Exclude parameters that no forward pass reads from gradients and optimizer state."""
        for module in self._dead_modules():
            module.requires_grad_(False)

    def _dead_modules(self) -> list[nn.Module]:
        backbone = self.vision_backbone
        return backbone.featurizer.dead_modules() + backbone.fused_featurizer.dead_modules()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize by fan-in, so that a small policy learns within hundreds of steps."""
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            fan_in = module.weight[0].numel()
            init.normal_(module.weight, std=fan_in**-0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, ValueHead):
            last = module.layers[-1]
            assert isinstance(last, nn.Linear)
            init.normal_(last.weight, std=LAST_VALUE_STD)
        elif isinstance(module, LayerScale):
            init.ones_(module.scale_factor)
        elif isinstance(module, VisionTower):
            for parameter in module.parameters(recurse=False):
                init.normal_(parameter, std=1.0)
        elif isinstance(module, ActionQueries):
            init.normal_(module.weight, std=module.weight.shape[-1] ** -0.5)
        elif isinstance(module, AttentionPool):
            init.normal_(module.latent, std=module.latent.shape[-1] ** -0.5)
        else:
            super()._init_weights(module)


AutoConfig.register("openvla", OpenVLAOFTConfig, exist_ok=True)
AutoModel.register(OpenVLAOFTConfig, OpenVLAOFT, exist_ok=True)


def new_parts(model: OpenVLAOFT, seed: int) -> dict[str, Callable[[], Tensor]]:
    """Return name -> a function that makes the float32 tensor on the CPU, for every new part of `model` (meta or not).

    Each tensor is made when it is read. Values are the same on every rank, however the rest is loaded. Action
    queries begin as zeros, with which official checkpoints were trained.
    """
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name.startswith(NEW_PARTS)}
    last = next((name for name in reversed(shapes) if name.startswith("value_head.")), None)
    return {name: partial(_first_value, name, shape, name == last, seed) for name, shape in shapes.items()}


def _first_value(name: str, shape: torch.Size, is_last: bool, seed: int) -> Tensor:
    """Return a value as `OpenVLAOFT._init_weights` does: by fan-in, biases zero. is_last: of the value head."""
    with torch.device("cpu"):
        if len(shape) != 2:
            return torch.zeros(shape)
        generator = torch.Generator().manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
        return torch.empty(shape).normal_(std=LAST_VALUE_STD if is_last else shape[1] ** -0.5, generator=generator)
