"""ActorCritic: proprioception and pixels in; choices and a value out.

Shape legend: B rows, N images per row, S x S pixels, P proprioception, K = C*A choices, V bins of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rlrun.policies.actor_critic.config import ActorCriticConfig
from rlrun.policies.actor_critic.running_statistics import RunningStatistics

HIDDEN_GAIN = 2**0.5
POLICY_GAIN = 0.01  # small, so that a new policy acts nearly alike in all states


class ActorCritic(nn.Module):
    """Policy and critic are separate perceptrons; with images they share the convolutions."""

    def __init__(self, config: ActorCriticConfig):
        super().__init__()
        self.config = config
        self.statistics = RunningStatistics(config.num_proprio) if config.is_normalized else None
        self.convolutions = _convolutions(config) if config.num_images else None
        width = config.num_proprio + (_num_features(config) if config.num_images else 0)
        choices = 1 if config.num_choices is None else config.num_choices
        self.policy = _perceptron(width, config.hidden_sizes, config.num_tokens * choices, POLICY_GAIN)
        self.value_head = _perceptron(width, config.value_hidden_sizes, 1, 1.0)
        if config.num_choices is None:
            self.log_std = nn.Parameter(torch.full((config.num_tokens,), config.initial_log_std))

    def forward(self, images: Tensor | None, proprio: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """Run one pass. images: uint8 [B, N, S, S, 3]; proprio: float32 [B, P]; each None if the network takes none.

        Returns Gaussian means [B, K] or logits [B, K, V], logarithms of the deviations [B, K] or None, and values
        [B]; all float32.
        """
        features = self._features(images, proprio)
        values = self.value_head(features).float().squeeze(-1)
        chosen = self.policy(features).float()
        if self.config.num_choices is not None:
            return chosen.unflatten(-1, (self.config.num_tokens, -1)), None, values
        return chosen, torch.zeros_like(chosen) + self.log_std, values  # the parameter may be freed after the pass

    def _features(self, images: Tensor | None, proprio: Tensor | None) -> Tensor:
        """Return the common input of policy and critic, [B, F], in the precision in which they compute."""
        parts = []
        if proprio is not None:
            parts.append(proprio if self.statistics is None else self.statistics.normalize(proprio))
        if self.convolutions is not None:
            assert images is not None
            pixels = images.permute(0, 1, 4, 2, 3).flatten(1, 2).to(_dtype(self.convolutions)) / 255
            parts.append(self.convolutions(pixels).to(torch.float32))
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).to(_dtype(self.policy))


def _dtype(layers: nn.Sequential) -> torch.dtype:
    """Return the precision of a stack: the type of its first layer's weights."""
    first = layers[0]
    assert isinstance(first, nn.Linear | nn.Conv2d)
    return first.weight.dtype


def _perceptron(width: int, hidden_sizes: Sequence[int], num_outputs: int, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    sizes = [width, *hidden_sizes]
    for fan_in, fan_out in pairwise(sizes):
        layers += [_orthogonal(nn.Linear(fan_in, fan_out), HIDDEN_GAIN), nn.Tanh()]
    return nn.Sequential(*layers, _orthogonal(nn.Linear(sizes[-1], num_outputs), gain))


def _convolutions(config: ActorCriticConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise([3 * config.num_images, *config.conv_channels]):
        convolution = nn.Conv2d(fan_in, fan_out, kernel_size=4, stride=2, padding=1)
        layers += [_orthogonal(convolution, HIDDEN_GAIN), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


def _num_features(config: ActorCriticConfig) -> int:
    return config.conv_channels[-1] * (config.image_size // 2 ** len(config.conv_channels)) ** 2


def _orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
