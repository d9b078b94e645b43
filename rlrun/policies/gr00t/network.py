"""Gr00tNetwork: pictures, words and state to a prefix, computed once; noisy actions and the prefix to a velocity.

Names of parameters are those of NVIDIA's checkpoints; LeRobot's have "_groot_model." before them. Flow time: 0 is
noise, 1 is an action chunk; the velocity is action minus noise, so that Euler steps add 1/num_steps times the velocity.
Shape legend: B rows, N pictures per row, S tokens of the prefix, T = action_horizon, A = max_action_dim, D width of the
VLM, W width of the transformer of actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor, nn

from rlrun.policies.flow.networks import initialize_by_fan_in, token_summary
from rlrun.policies.flow.time import NOISE_AT_ZERO
from rlrun.policies.gr00t.backbone import Backbone, Qwen3VL
from rlrun.policies.gr00t.config import Gr00tConfig
from rlrun.policies.gr00t.head import ActionHead, AdaptiveNorm, EmbodiedLinear


@dataclass(frozen=True, eq=False)
class Gr00tPrefix:
    """The VLM's output for pictures and words, and the state."""

    hidden: Tensor  # [B, S, D]: the last layer's output
    mask: Tensor  # bool [B, S], False at padding
    pictures: Tensor  # bool [B, S], True at tokens of pictures
    state: Tensor  # float32 [B, max_state_dim]
    features: Tensor  # [B, S, D]: of `hidden`, what actions attend to; until `completed` it is `hidden`

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a prefix of which every tensor is function(tensor). Example: prefix.map(lambda x: x[rows])."""
        return type(self)(*(function(getattr(self, entry.name)) for entry in fields(self)))

    def summary(self) -> Tensor:
        """Return the mean of the VLM's tokens, the last of them and the state: float32 [B, 2 D + max_state_dim]."""
        return torch.cat([token_summary(self.hidden, self.mask), self.state.float()], dim=1)


torch.export.register_dataclass(Gr00tPrefix)  # so that FSDP finds the tensors of an output


class Gr00tNetwork(nn.Module):
    """The whole network, with new weights.

    Example::

        prefix = network.completed(network.prefix(pixels, image_masks, tokens, token_masks, state))
        for step in range(num_steps):
            time = torch.full((batch,), step / num_steps)
            x = x + network.velocity(x, time, prefix)[0] / num_steps
    """

    flow_time = NOISE_AT_ZERO

    def __init__(self, config: Gr00tConfig):
        super().__init__()
        self.config = config
        sizes = config.sizes
        self.summary_width = 2 * sizes.backbone.text.hidden_size + sizes.max_state_dim
        self.hidden_width = sizes.hidden_size
        self.backbone = Backbone(sizes.backbone, sizes.select_layer)
        self.action_head = ActionHead(sizes)
        self._initialize()

    def prefix(
        self, pixels: Tensor, image_masks: Tensor, tokens: Tensor, token_masks: Tensor, state: Tensor
    ) -> Gr00tPrefix:
        """Run the VLM.

        pixels: float [B, N, 3, H, W] in [-1, 1]; image_masks: bool [B, N], False for a missing picture; tokens: int64
        [B, S], with those of pictures among them; token_masks: bool [B, S], False at padding; state: float32
        [B, max_state_dim], normalized and padded.
        """
        hidden, pictures = self._vlm(pixels, image_masks, tokens, token_masks)
        missing = (tokens == self.config.sizes.backbone.image_token_id) & ~pictures
        return Gr00tPrefix(hidden, token_masks & ~missing, pictures, state, hidden)

    def completed(self, prefix: Gr00tPrefix) -> Gr00tPrefix:
        """Return the prefix with its features, by the blocks between the VLM and the actions."""
        head = self.action_head
        features = head.vlln(prefix.hidden.to(head.vlln.weight.dtype))
        for block in self.feature_layers():
            features = block(features, prefix.mask)
        return replace(prefix, features=features)

    def velocity(self, x: Tensor, time: Tensor, prefix: Gr00tPrefix) -> tuple[Tensor, Tensor]:
        """Return (velocity float32 [B, T, A], the transformer's output for the actions [B, T, hidden_size]).

        x: float32 [B, T, A], actions with noise; time: float32 [B] in [0, 1], which becomes the number of a bucket.
        """
        head = self.action_head
        sizes = self.config.sizes
        embodiment = self.config.embodiment
        bucket = (time * sizes.num_timestep_buckets).floor()
        state = head.state_encoder(prefix.state[:, None], embodiment)
        actions = head.action_encoder(x, bucket, embodiment)
        actions = actions + head.position_embedding(torch.arange(x.shape[1], device=x.device))
        tokens = torch.cat([state, actions.to(state.dtype)], dim=1)
        words = prefix.mask & ~prefix.pictures
        hidden = head.model(tokens, bucket, prefix.features, words, prefix.pictures)[:, -x.shape[1] :]
        return head.action_decoder(hidden, embodiment), hidden

    def vision_layers(self) -> list[nn.Module]:
        """Return the layers of the vision tower, in the order of the forward pass."""
        return list(self._vlm.visual.blocks)

    def vlm_layers(self) -> list[nn.Module]:
        """Return the layers of the language model, in the order of the forward pass."""
        return list(self._vlm.language_model.layers)

    def feature_layers(self) -> list[nn.Module]:
        """Return the blocks between the VLM and the actions, in the order of the forward pass."""
        return list(self.action_head.vl_self_attention.transformer_blocks)

    def expert_layers(self) -> list[nn.Module]:
        """Return the blocks of the transformer of actions, in the order of the forward pass."""
        return list(self.action_head.model.transformer_blocks)

    @property
    def _vlm(self) -> Qwen3VL:
        vlm = self.backbone.model.model
        assert isinstance(vlm, Qwen3VL)
        return vlm

    @torch.no_grad()
    def _initialize(self) -> None:
        initialize_by_fan_in(self)
        embedding = self._vlm.visual.patch_embed.proj
        embedding.weight.normal_(std=embedding.weight[0].numel() ** -0.5)
        self._vlm.visual.pos_embed.weight.normal_()
        for module in self.modules():
            if isinstance(module, EmbodiedLinear):
                module.W.normal_(std=module.W.shape[1] ** -0.5)
            if isinstance(module, AdaptiveNorm):
                module.linear.weight.mul_(0.1)  # near a plain norm at first
        self.action_head.model.proj_out_1.weight.mul_(0.1)
