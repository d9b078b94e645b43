"""torch's AdamW with the state that checkpoints read and write."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class CheckpointedAdamW(torch.optim.AdamW):
    """torch's fused AdamW, which gives its state to checkpoints as tensors sharded like their parameters."""

    def moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of a parameter: step, and exp_avg and exp_avg_sq with its shape and sharding."""
        return dict(self.state.get(parameter, {}))

    def blank_moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return tensors into which the moments of a checkpoint can be read."""
        zeros = torch.zeros_like(parameter.detach())
        return {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}

    def take_moments(self, parameter: nn.Parameter, moments: Mapping[str, Tensor]) -> None:
        """Use the moments of a checkpoint."""
        self.state[parameter] = {**moments, "step": moments["step"].to(parameter.device)}  # for the fused kernel
