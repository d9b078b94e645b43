"""Running mean and variance of observations, for peers that keep none themselves."""

from __future__ import annotations

import numpy as np
import torch


class Normalizer:
    """As gymnasium.wrappers.vector.NormalizeObservation keeps them."""

    def __init__(self, size: int):
        self.mean, self.variance, self.count = np.zeros(size), np.ones(size), 1e-4

    def __call__(self, x: np.ndarray) -> torch.Tensor:
        """Takes float [B, size] in, and scales it."""
        mean, variance, count = x.mean(0), x.var(0), len(x)
        shift, total = mean - self.mean, self.count + count
        spread = self.variance * self.count + variance * count + shift**2 * self.count * count / total
        self.mean, self.variance, self.count = self.mean + shift * count / total, spread / total, total
        return self.scaled(x)

    def scaled(self, x: np.ndarray) -> torch.Tensor:
        """float32 [B, size]."""
        numbers = np.clip((x - self.mean) / np.sqrt(self.variance + 1e-8), -10, 10)
        return torch.from_numpy(numbers.astype(np.float32))
