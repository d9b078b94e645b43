"""torch's AdamW with the state that checkpoints read and write."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class CheckpointedAdamW(torch.optim.AdamW):
    """torch's fused AdamW, and what a checkpoint reads and writes of its state: tensors sharded as their parameters."""

    def moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What a checkpoint holds of a parameter: step, and exp_avg and exp_avg_sq shaped and sharded as it is."""
        return dict(self.state.get(parameter, {}))

    def blank_moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Tensors into which the moments of a checkpoint can be read."""
        zeros = torch.zeros_like(parameter.detach())
        return {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}

    def take_moments(self, parameter: nn.Parameter, moments: Mapping[str, Tensor]) -> None:
        """Go on from the moments of a checkpoint."""
        self.state[parameter] = {**moments, "step": moments["step"].to(parameter.device)}  # where a fused pass reads it
