"""Linear layers of the heads of a flow policy; a head says what lies between them."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


class Perceptron(nn.Module):
    """The layers, initialized by fan-in; the weights of the last one have the deviation `last_std`."""

    def __init__(self, sizes: list[int], last_std: float):
        super().__init__()
        self._last_std = last_std
        self.layers = nn.ModuleList(nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(sizes))

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw the weights."""
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            layer.weight.normal_(std=self._last_std if layer is self.layers[-1] else layer.weight.shape[1] ** -0.5)
            layer.bias.zero_()
