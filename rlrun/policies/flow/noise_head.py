"""The deviation of learned noise, within a range, in float32 whatever the precision of the policy."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.policies.flow.perceptron import Perceptron
from rlrun.policies.flow.settings import NOISE_SIZES

LAST_STD = 0.02  # of the last layer's weights: small, so that the noise begins in the middle of its range


class NoiseHead(Perceptron):
    """Hidden of action tokens [..., W] -> deviations [..., D], whose logarithms lie within those of the range."""

    def __init__(self, width: int, num_dims: int, noise_range: tuple[float, float]):
        super().__init__([width, *NOISE_SIZES, num_dims], LAST_STD)
        self._low, self._high = map(math.log, noise_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute in float32."""
        x = hidden.float()
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = F.linear(x, layer.weight.float(), layer.bias.float()).tanh()
        return (self._low + (self._high - self._low) * (x + 1.0) / 2.0).exp()
