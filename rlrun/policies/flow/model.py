"""A flow network and its critic in one module, whose forward pass is one pass for FSDP.

Shape legend: B rows, S control steps and D dimensions of the network's own chunk, T tokens of the prefix, W their
width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from rlrun.policies.value_head import ValueHead


class Prefix(Protocol):
    """What a network computes once per observation, for all flow steps."""

    def summary(self) -> Tensor:
        """Return what the critic reads: float32 [B, summary_width]."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a prefix of which every tensor is function(tensor)."""


class FlowNetwork(Protocol):
    """A flow-matching network, a torch module: a prefix of an observation, and a velocity over it."""

    summary_width: int  # of the prefix's summary

    def prefix(self, pixels: Tensor, image_masks: Tensor, tokens: Tensor, token_masks: Tensor, state: Tensor) -> Prefix:
        """Return the prefix of an observation, as `FlowProcessor` prepares it."""

    def velocity(self, x: Tensor, time: Tensor, prefix: Any) -> tuple[Tensor, Tensor]:
        """Return (velocity float32 [B, S, D], hidden of the action tokens) at x float32 [B, S, D], time float32 [B]."""

    def vision_layers(self) -> list[nn.Module]:
        """Return the layers of the vision tower, in the order of the forward pass."""

    def vlm_layers(self) -> list[nn.Module]:
        """Return the layers of the language model, in the order of the forward pass."""

    def expert_layers(self) -> list[nn.Module]:
        """Return the layers of the expert, in the order of the forward pass."""


@dataclass(frozen=True, eq=False)
class Point:
    """Where the velocity is wanted. Not a tuple of tensors, since FSDP would cast those to its precision."""

    x: Tensor  # float32 [B, S, D]
    time: Tensor  # float32 [B]


class FlowModel(nn.Module):
    """`network` has all weights of the policy, `value_head` those of the critic, if there is one."""

    def __init__(self, network: FlowNetwork, value_hidden_sizes: list[int], trains_prefix: bool):
        """trains_prefix: False: what the prefix needs stays as it is, and is computed without gradients."""
        super().__init__()
        assert isinstance(network, nn.Module)
        self.network: nn.Module = network
        self._critic_sizes = network.summary_width, value_hidden_sizes
        self.value_head = self._new_head()
        self.trains_prefix = trains_prefix

    def forward(self, observed: tuple, point: Point | None) -> tuple[Tensor | None, Tensor | None, Any]:
        """Return (velocity at `point`, if one is given; values float32 [B], if there is a critic; the prefix).

        observed: arguments of the network's `prefix`, hidden from FSDP by the policy if they must keep their precision.
        """
        network: Any = self.network
        with torch.set_grad_enabled(self.trains_prefix and torch.is_grad_enabled()):
            prefix = network.prefix(*observed)
        values = None if self.value_head is None else self.value_head(prefix.summary())
        velocity = None if point is None else network.velocity(point.x, point.time, prefix)[0]
        return velocity, values, prefix

    def new_critic(self) -> dict[str, Tensor]:
        """Return newly drawn parameters of the critic by their names in this module, on the CPU."""
        with torch.device("cpu"):
            head = self._new_head()
        return {} if head is None else {f"value_head.{name}": tensor for name, tensor in head.state_dict().items()}

    def _new_head(self) -> ValueHead | None:
        width, sizes = self._critic_sizes
        if not sizes:
            return None
        head = ValueHead(width, sizes)
        head.initialize()
        return head


def token_summary(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens that are no padding, and the last of them: float32 [B, 2W].

    hidden: [B, T, W]; mask: bool [B, T].
    """
    hidden, weights = hidden.float(), mask.float().unsqueeze(-1)
    mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1.0)
    places = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, places, 0).amax(1)
    return torch.cat([mean, hidden[torch.arange(len(last), device=last.device), last]], dim=1)
