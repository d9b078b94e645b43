"""The critics of DSRL: features and the chosen noise to values; several networks in one.

Shape legend: M transitions, W features of an observation, A numbers of the noise, N critics.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIRST_STD = 0.02  # of the last layer's weights: small, so that the first values are near zero


class Critics(nn.Module):
    """N perceptrons with layer norms, which share nothing: features [M, W], noise [M, A] -> values [N, M]."""

    def __init__(self, num_critics: int, num_inputs: int, hidden_sizes: list[int], random: torch.Generator):
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in pairwise([num_inputs, *hidden_sizes, 1]):
            std = FIRST_STD if fan_out == 1 else fan_in**-0.5
            self.weights.append(std * torch.randn(num_critics, fan_in, fan_out, generator=random))
            self.biases.append(torch.zeros(num_critics, 1, fan_out))

    def forward(self, features: Tensor, noise: Tensor) -> Tensor:
        x = torch.cat([features, noise], dim=1).expand(len(self.weights[0]), -1, -1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = F.gelu(F.layer_norm(torch.baddbmm(bias, x, weight), weight.shape[-1:]))
        return torch.baddbmm(self.biases[-1], x, self.weights[-1]).squeeze(-1)
