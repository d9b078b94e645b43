"""Running mean and variance of observations, as buffers: saved, sent and restored with the weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

CLIP = 10.0  # standard deviations from the mean
EPS = 1e-8


class RunningStatistics(nn.Module):
    """Statistics of vectors of `size` numbers; mean 0 and variance 1 before the first observation."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("count", torch.zeros(1))

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x - mean) / deviation, clipped; the shape of `x` [..., size]."""
        return ((x - self.mean) * (self.variance + EPS).rsqrt()).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def add(self, rows: Tensor, reduce: Callable[[Tensor], Tensor]) -> None:
        """Add float32 [M, size] of every rank; `reduce` sums over the ranks. M may be 0.

        Uses two passes: sums of squares around the common mean, so that large values lose no digits.
        """
        rows = rows.double().cpu()
        sums = reduce(torch.cat([torch.tensor([float(len(rows))], dtype=torch.float64), rows.sum(0)]))
        if sums[0] == 0:
            return
        mean = sums[1:] / sums[0]
        variance = reduce((rows - mean).square().sum(0)) / sums[0]
        old_count, old_mean = self.count.double().cpu(), self.mean.double().cpu()
        count = old_count + sums[0]
        shift, share = mean - old_mean, sums[0] / count
        spread = self.variance.double().cpu() * (1 - share) + variance * share + shift.square() * share * (1 - share)
        self.mean.copy_(old_mean + shift * share)
        self.variance.copy_(spread)
        self.count.copy_(count)
