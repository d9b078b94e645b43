"""SmolVLA behind the policy interface.

Shape legend: B rows, N images per row, H x W pixels, C control steps, A action dimensions, P proprioception.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from rlrun.policies.flow.distribution import ChunkShape
from rlrun.policies.flow.flow_sde import FlowSde
from rlrun.policies.flow.model import FlowModel
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.smolvla.checkpoint import NETWORK, RunSettings, save_policy
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.smolvla.processor import SmolVLAProcessor

# What training the expert only trains; the prefix is then the same for ever, and is computed without gradients.
EXPERT_PARTS = ("vlm_with_expert.lm_expert.", "action_in_proj.", "action_out_proj.", "action_time_mlp_")
UNREAD = "model.vlm_with_expert.vlm.lm_head."  # official folders contain it


class SmolVLAPolicy(FlowPolicy):
    """The network, its critic and its processor."""

    def __init__(
        self,
        network: SmolVLANetwork,
        processor: SmolVLAProcessor,
        sde: FlowSde,
        num_action_chunks: int,
        num_actions: int,
        value_hidden_sizes: list[int],
        train_expert_only: bool,
    ):
        config = network.config
        module = FlowModel(network, config.vlm.text.hidden_size, value_hidden_sizes, not train_expert_only)
        shape = ChunkShape(config.chunk_size, config.max_action_dim, num_action_chunks, num_actions)
        super().__init__(module, sde, shape, processor.num_proprio)
        self.processor, self.config = processor, config
        self.value_hidden_sizes = value_hidden_sizes
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name not in self.frozen_names())

    def observed(self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray) -> tuple:
        return self.processor(images, instructions, proprio, self.device)

    def normalized(self, actions: np.ndarray) -> np.ndarray:
        return self.processor.normalized(actions)

    def physical(self, actions: np.ndarray) -> np.ndarray:
        return self.processor.physical(actions)

    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        shape, processor = self.shape, self.processor
        settings = RunSettings(
            num_action_chunks=shape.num_executed,
            num_actions=shape.num_actions,
            num_proprio=processor.num_proprio,
            num_flow_steps=self.sde.num_steps,
            noise_level=self.sde.noise_level,
            value_hidden_sizes=self.value_hidden_sizes,
        )
        tensors = self.module.state_dict().items() if named_tensors is None else named_tensors
        save_policy(folder, self.config, processor, settings, tensors)

    def stacks(self) -> list[list[nn.Module]]:
        network = self.module.network
        assert isinstance(network, SmolVLANetwork)
        return [network.vision_layers(), network.vlm_layers(), network.expert_layers()]

    def frozen_names(self) -> set[str]:
        names = (name for name, _ in self.module.named_parameters())
        return {name for name in names if name.startswith(NETWORK) and not self._is_trained(name)}

    def unread_names(self) -> set[str]:
        return {name for name, _ in self.module.named_parameters() if name.startswith(NETWORK + UNREAD)}

    def _is_trained(self, name: str) -> bool:
        if name.startswith(NETWORK + UNREAD):
            return False
        return self.module.trains_prefix or any(part in name for part in EXPERT_PARTS)
