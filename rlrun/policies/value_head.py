"""The critic's head, in float32 whatever the precision of the policy.

Shape legend: B rows, D width of what it reads.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAST_VALUE_STD = 0.02  # of the last layer's weights: small, so that the first values are near zero


class ValueHead(nn.Module):
    """[B, D] -> values [B]."""

    def __init__(self, width: int, hidden_sizes: list[int]):
        super().__init__()
        sizes = [width, *hidden_sizes]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1, bias=False))

    @torch.no_grad()
    def initialize(self) -> None:
        """Initialize by fan-in, and the last layer so that the first values are near zero."""
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                is_last = layer is self.layers[-1]
                layer.weight.normal_(std=LAST_VALUE_STD if is_last else layer.weight.shape[1] ** -0.5)
                if layer.bias is not None:
                    layer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Compute in float32, whatever the precision of the weights."""
        x = x.float()
        for layer in self.layers:
            x = linear_in_float32(x, layer.weight, layer.bias) if isinstance(layer, nn.Linear) else layer(x)
        return x.squeeze(-1)


def linear_in_float32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T (+ bias) in float32.

    Logits of a bfloat16 product would be rounded once more, which doubles the gap between the log-probabilities of
    rollout and actor. For 256 rows of weights the float32 product costs next to nothing.
    """
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float())
