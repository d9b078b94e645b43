"""OpenVLA-OFT behind the policy interface: from images, an instruction and proprioception to action bins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.algorithms.losses import imitation_loss
from rlrun.config.schema import AttentionKernel, Precision, SftConfig
from rlrun.policies.distributions import Bins
from rlrun.policies.openvla_oft.attention import chosen_kernel
from rlrun.policies.openvla_oft.checkpoint import save_policy
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.policy import ImitationPolicy
from rlrun.policies.processor import Processor


class VlaPolicy(ImitationPolicy):
    """The policy of `model` and its processor; K tokens of 256 bins."""

    module: OpenVLAOFT

    def __init__(self, model: OpenVLAOFT, processor: Processor):
        self.module, self.processor = model, processor
        self.device = model.device
        self.num_actions, self.num_proprio = model.config.num_actions, model.config.num_proprio
        self.num_action_chunks = model.config.num_action_chunks

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[Bins, Tensor | None]:
        pixels = torch.from_numpy(images).to(self.device)
        inputs = self.processor(pixels, instructions, proprio, self.device, self.module.dtype)
        output = self.module(inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio)
        return Bins(output.action_logits, temperature), output.value

    def imitation_loss(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        actions: np.ndarray,
        step_valid: np.ndarray,
        settings: SftConfig,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        tokens = torch.as_tensor(self.processor.encode_actions(actions)).flatten(1).to(self.device)
        mask = torch.from_numpy(step_valid).repeat_interleave(self.num_actions, dim=-1).to(self.device)
        distribution, _ = self(images, instructions, proprio, temperature=1.0)
        return imitation_loss(distribution.logits, tokens, mask, settings.label_smoothing_bins)

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        return self.processor.decode_actions(tokens)

    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        save_policy(folder, self.module, self.processor, named_tensors)

    def use_attention(self, asked: AttentionKernel | None, precision: Precision) -> None:
        self.module.use_attention(chosen_kernel(asked, self.device, precision))

    def stacks(self) -> list[list[nn.Module]]:
        return self.module.stacks()

    def frozen_names(self) -> set[str]:
        return self.module.frozen_names()
