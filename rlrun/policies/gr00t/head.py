"""GR00T's action head: projections by embodiment, and a transformer whose blocks attend to pictures, words, themselves.

Names of parameters are those of NVIDIA's checkpoints. Nothing drops out: actions must have the log-probabilities with
which they were sampled.
Shape legend: B rows, T tokens of state and actions, S tokens of the VLM, D width of the VLM, W width of the transformer
of actions.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.policies.flow.networks import attention, split_heads
from rlrun.policies.gr00t.config import Gr00tSizes, TransformerSizes

MAX_WAVELENGTH = 10_000.0
BUCKET_WIDTH = 256  # sines and cosines of a bucket of the flow time


class EmbodiedLinear(nn.Module):
    """A linear layer with a matrix for each embodiment, in the type of its weights, or in float32."""

    def __init__(self, num_embodiments: int, fan_in: int, fan_out: int, in_float32: bool = False):
        super().__init__()
        self.W = nn.Parameter(torch.empty(num_embodiments, fan_in, fan_out))
        self.b = nn.Parameter(torch.zeros(num_embodiments, fan_out))
        self.in_float32 = in_float32

    def forward(self, x: Tensor, embodiment: int) -> Tensor:
        """[..., fan_in] -> [..., fan_out]."""
        weight = self.W[embodiment]
        bias = self.b[embodiment]
        if self.in_float32:
            return F.linear(x.float(), weight.float().t(), bias.float())
        return F.linear(x.to(weight.dtype), weight.t(), bias)


class EmbodiedPerceptron(nn.Module):
    """Two layers with a ReLU between them."""

    def __init__(self, num_embodiments: int, sizes: tuple[int, int, int], last_in_float32: bool = False):
        super().__init__()
        self.layer1 = EmbodiedLinear(num_embodiments, *sizes[:2])
        self.layer2 = EmbodiedLinear(num_embodiments, *sizes[1:], last_in_float32)

    def forward(self, x: Tensor, embodiment: int) -> Tensor:
        """[..., first size] -> [..., last size]."""
        return self.layer2(F.relu(self.layer1(x, embodiment)), embodiment)


class ActionEncoder(nn.Module):
    """Noisy actions and the bucket of their flow time to tokens."""

    def __init__(self, num_embodiments: int, num_actions: int, width: int):
        super().__init__()
        self.W1 = EmbodiedLinear(num_embodiments, num_actions, width)
        self.W2 = EmbodiedLinear(num_embodiments, 2 * width, width)
        self.W3 = EmbodiedLinear(num_embodiments, width, width)

    def forward(self, actions: Tensor, bucket: Tensor, embodiment: int) -> Tensor:
        """actions: [B, T, A]; bucket: float32 [B], a whole number; returns [B, T, W]."""
        x = self.W1(actions, embodiment)
        half = x.shape[-1] // 2
        exponents = torch.arange(half, dtype=torch.float32, device=x.device) * (-math.log(MAX_WAVELENGTH) / half)
        angles = bucket[:, None] * exponents.exp()
        waves = torch.cat([angles.sin(), angles.cos()], dim=1).to(x.dtype)
        x = F.silu(self.W2(torch.cat([x, waves[:, None].expand_as(x)], dim=2), embodiment))
        return self.W3(x, embodiment)


class TimeEncoder(nn.Module):
    """Bucket of the flow time, float32 [B] -> condition of the blocks [B, W]."""

    def __init__(self, width: int):
        super().__init__()
        first = nn.Linear(BUCKET_WIDTH, width)
        second = nn.Linear(width, width)
        self.timestep_embedder = nn.ModuleDict({"linear_1": first, "linear_2": second})

    def forward(self, bucket: Tensor) -> Tensor:
        first: Any = self.timestep_embedder["linear_1"]  # with adapters it is no nn.Linear
        second = self.timestep_embedder["linear_2"]
        half = BUCKET_WIDTH // 2
        exponents = torch.arange(half, dtype=torch.float32, device=bucket.device) * (
            -math.log(MAX_WAVELENGTH) / (half - 1)
        )
        angles = bucket[:, None] * exponents.exp()
        waves = torch.cat([angles.cos(), angles.sin()], dim=1).to(first.weight.dtype)
        return second(F.silu(first(waves)))


def modulated(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Return the layer norm of x [B, T, W], scaled by 1 + scale [B, W] and shifted by shift [B, W]."""
    return F.layer_norm(x, x.shape[-1:], eps=eps) * (1 + scale[:, None]) + shift[:, None]


class AdaptiveNorm(nn.Module):
    """Layer norm whose scale and shift follow from the flow time."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """x: [B, T, W]; condition: [B, W]."""
        scale, shift = self.linear(F.silu(condition)).chunk(2, dim=1)
        return modulated(x, scale, shift, eps=1e-5)


class Attention(nn.Module):
    """Attention of tokens [B, T, W] to others [B, S, width of these]."""

    def __init__(self, sizes: TransformerSizes, other_width: int):
        super().__init__()
        self.head_width = sizes.attention_head_dim
        self.to_q = nn.Linear(sizes.width, sizes.width)
        self.to_k, self.to_v = (nn.Linear(other_width, sizes.width) for _ in range(2))
        self.to_out = nn.ModuleList([nn.Linear(sizes.width, sizes.width)])

    def forward(self, x: Tensor, others: Tensor, mask: Tensor | None) -> Tensor:
        """mask: bool [B, S], False where nothing looks; None: everything is seen."""
        query = split_heads(self.to_q, x, self.head_width)
        key, value = (split_heads(projection, others, self.head_width) for projection in (self.to_k, self.to_v))
        seen = others.new_ones(1, 1, others.shape[1], dtype=torch.bool) if mask is None else mask[:, None]
        return self.to_out[0](attention(query, key, value, seen))


class FeedForward(nn.Module):
    """Two layers with a GELU between them; the names are diffusers'."""

    def __init__(self, width: int):
        super().__init__()
        first = nn.ModuleDict({"proj": nn.Linear(width, 4 * width)})
        self.net = nn.ModuleList([first, nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        first = self.net[0]
        assert isinstance(first, nn.ModuleDict)
        return self.net[2](F.gelu(first["proj"](x), approximate="tanh"))


class ActionBlock(nn.Module):
    """A block of the transformer: tokens [B, T, W] attend to the VLM's, or to each other."""

    def __init__(self, sizes: TransformerSizes, other_width: int | None):
        """other_width: D; None: the tokens attend to each other."""
        super().__init__()
        self.is_cross = other_width is not None
        self.norm1 = AdaptiveNorm(sizes.width)
        self.attn1 = Attention(sizes, sizes.width if other_width is None else other_width)
        self.ff = FeedForward(sizes.width)

    def forward(self, hidden: Tensor, condition: Tensor, features: Tensor, mask: Tensor | None) -> Tensor:
        """condition: [B, W]; features: the VLM's [B, S, D]; mask: bool [B, S] of those that are attended to."""
        x = self.norm1(hidden, condition)
        hidden = hidden + self.attn1(x, features if self.is_cross else x, mask if self.is_cross else None)
        return hidden + self.ff(F.layer_norm(hidden, hidden.shape[-1:]))


class ActionTransformer(nn.Module):
    """Blocks that attend in turn to words, each other, pictures, each other."""

    def __init__(self, sizes: Gr00tSizes):
        super().__init__()
        dit = sizes.dit
        width = sizes.backbone.text.hidden_size
        self.turn = 2 * sizes.attend_text_every_n_blocks
        self.timestep_encoder = TimeEncoder(dit.width)
        self.transformer_blocks = nn.ModuleList(
            ActionBlock(dit, None if i % 2 else width) for i in range(dit.num_layers)
        )
        self.proj_out_1 = nn.Linear(dit.width, 2 * dit.width)
        self.proj_out_2 = nn.Linear(dit.width, sizes.hidden_size)

    def forward(self, hidden: Tensor, bucket: Tensor, features: Tensor, words: Tensor, pictures: Tensor) -> Tensor:
        """[B, T, W] -> [B, T, hidden_size]. bucket: float32 [B]; features: [B, S, D]; words, pictures: bool [B, S]."""
        condition = self.timestep_encoder(bucket)
        for i, block in enumerate(self.transformer_blocks):
            hidden = block(hidden, condition, features, words if i % self.turn == 0 else pictures)
        shift, scale = self.proj_out_1(F.silu(condition)).chunk(2, dim=1)
        return self.proj_out_2(modulated(hidden, scale, shift, eps=1e-6))


class FeatureBlock(nn.Module):
    """A block over the VLM's features, [B, S, D] -> [B, S, D]."""

    def __init__(self, sizes: TransformerSizes):
        super().__init__()
        self.norm1, self.norm3 = (nn.LayerNorm(sizes.width) for _ in range(2))
        self.attn1 = Attention(sizes, sizes.width)
        self.ff = FeedForward(sizes.width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """mask: bool [B, S], False at padding. LeRobot's class lets all see padding: its rows depend on their batch."""
        x = self.norm1(hidden)
        hidden = hidden + self.attn1(x, x, mask)
        return hidden + self.ff(self.norm3(hidden))


class FeatureTransformer(nn.Module):
    """The blocks between the VLM and the transformer of actions."""

    def __init__(self, sizes: TransformerSizes):
        super().__init__()
        self.transformer_blocks = nn.ModuleList(FeatureBlock(sizes) for _ in range(sizes.num_layers))


class ActionHead(nn.Module):
    """All that GR00T adds to the VLM."""

    def __init__(self, sizes: Gr00tSizes):
        super().__init__()
        num = sizes.max_num_embodiments
        hidden = sizes.hidden_size
        width = sizes.dit.width
        self.model = ActionTransformer(sizes)
        self.state_encoder = EmbodiedPerceptron(num, (sizes.max_state_dim, hidden, width))
        self.action_encoder = ActionEncoder(num, sizes.max_action_dim, width)
        self.action_decoder = EmbodiedPerceptron(num, (hidden, hidden, sizes.max_action_dim), last_in_float32=True)
        self.vlln = nn.LayerNorm(sizes.backbone.text.hidden_size)
        self.vl_self_attention = FeatureTransformer(sizes.vl_self_attention)
        self.position_embedding = nn.Embedding(sizes.max_seq_len, width)
