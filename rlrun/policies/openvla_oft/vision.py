"""The vision towers: plain vision transformers with timm's parameter names and exact GELU.

Shape legend: B images, P patches, D width, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer

from rlrun.config.schema import AttentionKernel
from rlrun.policies.openvla_oft.attention import attend
from rlrun.policies.openvla_oft.config import TowerShape

LAYER_NORM_EPS = 1e-6


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
