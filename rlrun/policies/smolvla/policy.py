"""SmolVLA behind the policy interface."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.smolvla.folder import write_folder
from rlrun.policies.smolvla.processor import SmolVLAProcessor


class SmolVLAPolicy(FlowPolicy):
    """The network, its critic and its processor."""

    processor: SmolVLAProcessor
    expert_parts = ("vlm_with_expert.lm_expert.", "action_in_proj.", "action_out_proj.", "action_time_mlp_")
    unread_parts = ("model.vlm_with_expert.vlm.lm_head.",)

    def write_network(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        processor = self.processor
        write_folder(folder, processor.config, processor.tokenizer, processor.statistics, named_tensors)
