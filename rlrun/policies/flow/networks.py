"""Network parts that pi0 and SmolVLA share: attention, the cached prefix, projections, vision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionTransformer

from rlrun.policies.flow.spec import PatchPositions, VisionSizes
from rlrun.policies.flow.time import NOISE_AT_ONE

MAX_WAVELENGTH = 10_000.0  # LeRobot's, whatever rope_theta the VLM was trained with


def apply_rope(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate heads by position (RoPE), in float32: x [B, T, H, E], positions int64 [B, T]; returns the type of x."""
    half = x.shape[-1] // 2
    exponents = torch.arange(half, dtype=torch.float32, device=x.device) * (2.0 / x.shape[-1])
    angles = (positions[..., None].float() / MAX_WAVELENGTH**exponents)[:, :, None]
    cos = angles.cos()
    sin = angles.sin()
    first, second = x.float().split(half, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attend: query [B, T, H, E], key and value [B, S, K, E], mask bool [B, 1 or T, S] -> [B, T, H*E].

    Every query must see a key. The softmax is computed in float32, in whatever type the products are.
    """
    groups = query.shape[2] // key.shape[2]
    key, value = (x.repeat_interleave(groups, dim=2).transpose(1, 2) for x in (key, value))
    mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key, value, attn_mask=mask[:, None])
    return mixed.transpose(1, 2).flatten(2)


def split_heads(projection: nn.Linear, x: Tensor, width: int) -> Tensor:
    """Project [B, T, ...] -> [B, T, heads, width], in the type of the projection's weights."""
    return projection(x.to(projection.weight.dtype)).unflatten(-1, (-1, width))


def prefill(layer: Any, hidden: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a decoder layer of transformers; returns (hidden [B, S, D], rotated keys and values [B, S, K, E]).

    positions: int64 [B, S]; mask: bool [B, S, S]. To be called in the layer's own `forward`.
    """
    attn = layer.self_attn
    x = layer.input_layernorm(hidden)
    query = apply_rope(split_heads(attn.q_proj, x, attn.head_dim), positions)
    key = apply_rope(split_heads(attn.k_proj, x, attn.head_dim), positions)
    value = split_heads(attn.v_proj, x, attn.head_dim)
    return after_attention(layer, hidden, attention(query, key, value, mask)), key, value


def after_attention(layer: Any, hidden: Tensor, mixed: Tensor) -> Tensor:
    """Compute what follows attention: [B, T, D] and [B, T, H*E] -> [B, T, D]."""
    out = layer.self_attn.o_proj(mixed)
    out = out + hidden.to(out.dtype)
    return out + layer.mlp(layer.post_attention_layernorm(out))


@dataclass(frozen=True, eq=False)
class LayeredPrefix:
    """Keys, values and hidden states of the VLM for one observation: the expert's context and the critic's input."""

    keys: tuple[Tensor, ...]  # by layer [B, S, K, E], rotated
    values: tuple[Tensor, ...]  # by layer [B, S, K, E]
    mask: Tensor  # bool [B, S], False at padding
    num_positions: Tensor  # int64 [B]: tokens that are not padding; the first action's position
    hidden: Tensor  # [B, S, D]: the last layer's output after its norm

    @classmethod
    def from_embeddings(
        cls, layers: Iterable[nn.Module], norm: nn.Module, hidden: Tensor, mask: Tensor, sees: Tensor, **own: Tensor
    ) -> Self:
        """Run the language model over embeddings [B, S, D].

        layers: each returns (hidden, keys, values); mask: bool [B, S]; sees: bool [B, S, S] of `visibility`; own: what
        a subclass has beside.
        """
        positions = mask.cumsum(dim=1) - 1
        keys = []
        values = []
        for layer in layers:
            hidden, key, value = layer(hidden, positions, sees)
            keys.append(key)
            values.append(value)
        return cls(tuple(keys), tuple(values), mask, mask.sum(dim=1), norm(hidden), **own)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a prefix of which every tensor is function(tensor). Example: prefix.map(lambda x: x[rows])."""
        mapped: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            mapped[entry.name] = tuple(map(function, value)) if isinstance(value, tuple) else function(value)
        return type(self)(**mapped)

    def summary(self) -> Tensor:
        """Return the mean of the prefix and its last token, which sees all others: float32 [B, 2 D]."""
        return token_summary(self.hidden, self.mask)


torch.export.register_dataclass(LayeredPrefix)  # so that FSDP finds the tensors of an output


class LayeredNetwork(nn.Module):
    """A network whose expert reads keys and values of the VLM's layers, from t = 1, noise, to t = 0, an action."""

    flow_time = NOISE_AT_ONE

    def completed(self, prefix: LayeredPrefix) -> LayeredPrefix:
        """Return the prefix: the expert reads it as the VLM made it."""
        return prefix


def token_summary(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens that are no padding, and the last of them: float32 [B, 2 D].

    hidden: [B, S, D]; mask: bool [B, S].
    """
    hidden = hidden.float()
    weights = mask.float().unsqueeze(-1)
    mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1.0)
    places = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, places, 0).amax(1)
    return torch.cat([mean, hidden[torch.arange(len(last), device=last.device), last]], dim=1)


def visibility(mask: Tensor, state_at: int) -> Tensor:
    """Return bool [B, S, S], True where a row's token attends to a column's.

    mask: bool [B, S], False at padding. Pictures and words do not see the state, which is at position state_at.
    Tokens of padding see themselves, so that no softmax is empty; nothing sees them.
    """
    place = torch.arange(mask.shape[1], device=mask.device)
    is_allowed = (place[:, None] >= state_at) | (place < state_at)
    return (mask[:, None] & is_allowed) | (place[:, None] == place)


class LinearInOwnType(nn.Linear):
    """A linear layer that casts its input to the type of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class LinearInFloat32(nn.Linear):
    """A linear layer that computes in float32, whatever the type of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self.weight.float(), self.bias.float())


def sinusoidal(time: Tensor, width: int, min_period: float, max_period: float) -> Tensor:
    """Return sines, then cosines, of width/2 frequencies: time [B] -> [B, width], float64 where the device has it."""
    dtype = torch.float32 if time.device.type == "mps" else torch.float64
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=dtype, device=time.device)
    angles = time[:, None] * (2 * math.pi / (min_period * (max_period / min_period) ** fraction))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


@torch.no_grad()
def initialize_by_fan_in(network: nn.Module) -> None:
    """Draw the matrices of linear layers, convolutions and embeddings; biases are 0, norms keep their values.

    A small policy then learns within hundreds of steps, which it does not with a large model's standard deviation.
    """
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.Embedding)):
            fan_in = module.weight.shape[1] if isinstance(module, nn.Embedding) else module.weight[0].numel()
            module.weight.normal_(std=fan_in**-0.5)
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module.bias is not None:
            module.bias.zero_()


class VisionTower(SmolVLMVisionTransformer):
    """SigLIP without padding: square pictures [M, 3, S, S] in [-1, 1] -> [M, P, D], one token per patch, row by row.

    transformers' own forward pass looks for padding in a mask, which is a wait for the device, and finds positions by
    comparing fractions in floating point, which rounds otherwise from one version to the next.
    """

    positions: PatchPositions = PatchPositions.exact

    def forward(self, pixels: Tensor) -> Tensor:
        of_patches = self.embeddings.patch_embedding
        of_positions = self.embeddings.position_embedding
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
