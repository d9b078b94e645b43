"""A flow network and its critic in one module, whose forward pass is one pass for FSDP.

Shape legend: B rows, S control steps and D dimensions of the network's own chunk, T tokens of the prefix, W their
width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rlrun.policies.value_head import ValueHead


class Prefix(Protocol):
    """What a network computes once per observation, for all flow steps."""

    hidden: Tensor  # [B, T, W], of the last layer
    mask: Tensor  # bool [B, T]; False: padding


class FlowNetwork(Protocol):
    """A flow-matching network: a prefix of pictures, instruction and state, and a velocity over it."""

    def prefix(self, *observed: Any) -> Prefix:
        """Return the prefix of an observation."""

    def velocity(self, x: Tensor, time: Tensor, prefix: Any) -> tuple[Tensor, Tensor]:
        """Return (velocity float32 [B, S, D], hidden of the action tokens) at x float32 [B, S, D], time float32 [B]."""


@dataclass(frozen=True, eq=False)
class Point:
    """Where the velocity is wanted. Not a tuple of tensors, since FSDP would cast those to its precision."""

    x: Tensor  # float32 [B, S, D]
    time: Tensor  # float32 [B]


class FlowModel(nn.Module):
    """`network` has all weights of the policy, `value_head` those of the critic, if there is one."""

    def __init__(self, network: nn.Module, width: int, value_hidden_sizes: list[int], trains_prefix: bool):
        """width: W. trains_prefix: False: what the prefix needs stays as it is, and is computed without gradients."""
        super().__init__()
        self.network = network
        self.value_head = ValueHead(2 * width, value_hidden_sizes) if value_hidden_sizes else None
        if self.value_head is not None:
            self.value_head.initialize()
        self.trains_prefix = trains_prefix

    def forward(self, observed: tuple, point: Point | None) -> tuple[Tensor | None, Tensor | None, Any]:
        """Return (velocity at `point`, if one is given; values float32 [B], if there is a critic; the prefix).

        observed: arguments of the network's `prefix`, hidden from FSDP by the policy if they must keep their precision.
        """
        network: Any = self.network
        with torch.set_grad_enabled(self.trains_prefix and torch.is_grad_enabled()):
            prefix = network.prefix(*observed)
        values = None if self.value_head is None else self.value_head(_summary(prefix))
        velocity = None if point is None else network.velocity(point.x, point.time, prefix)[0]
        return velocity, values, prefix


def _summary(prefix: Prefix) -> Tensor:
    """Return the mean over the tokens that are no padding, and the last of them, the state's: float32 [B, 2W]."""
    hidden, weights = prefix.hidden.float(), prefix.mask.float().unsqueeze(-1)
    mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1.0)
    places = torch.arange(prefix.mask.shape[1], device=prefix.mask.device)
    last = torch.where(prefix.mask, places, 0).amax(1)
    return torch.cat([mean, hidden[torch.arange(len(last), device=last.device), last]], dim=1)
