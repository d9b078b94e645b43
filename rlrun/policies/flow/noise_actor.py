"""The actor of DSRL: what the network saw of an observation to a distribution of the first noise, in float32."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.policies.flow.perceptron import Perceptron
from rlrun.policies.value_head import linear_in_float32

LAST_STD = 0.01  # of the last layer's weights: small, so that first the noise is standard normal before tanh
LOG_STD_RANGE = (-5.0, 1.0)


class NoiseActor(Perceptron):
    """Summary of a prefix [B, W] -> (means [B, A], logarithms of deviations [B, A]), of numbers before tanh."""

    def __init__(self, width: int, hidden_sizes: list[int], num_numbers: int):
        super().__init__([width, *hidden_sizes, 2 * num_numbers], LAST_STD)

    def forward(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        """Compute in float32, whatever the precision of the weights."""
        x = summary.float()
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = linear_in_float32(x if layer is self.layers[0] else F.gelu(x), layer.weight, layer.bias)
        mean, log_std = x.chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD_RANGE)
