"""Projections of actions and of flow time, in the types that LeRobot computes them in."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
