"""pi0 and pi0.5 behind the policy interface."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.pi.folder import write_folder
from rlrun.policies.pi.processor import PiProcessor


class PiPolicy(FlowPolicy):
    """The network, its critic and its processor."""

    processor: PiProcessor
    expert_parts = ("gemma_expert.", "action_in_proj.", "action_out_proj.", "time_mlp_", "state_proj.")

    def write_network(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        processor = self.processor
        described = (processor.config, processor.tokenizer, processor.statistics)
        write_folder(folder, *described, named_tensors, processor.state_in_prompt)
