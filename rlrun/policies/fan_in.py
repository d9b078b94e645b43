"""New weights of a network, scaled by the number of their inputs."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def initialize_by_fan_in(network: nn.Module) -> None:
    """Draw the matrices of linear layers, convolutions and embeddings; biases are 0, norms keep their values.

    A small policy then learns within hundreds of steps, which it does not with a large model's standard deviation.
    """
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.Embedding)):
            fan_in = module.weight.shape[1] if isinstance(module, nn.Embedding) else module.weight[0].numel()
            module.weight.normal_(std=fan_in**-0.5)
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module.bias is not None:
            module.bias.zero_()
