from __future__ import annotations
from dataclasses import dataclass
import numpy as np


@dataclass(frozen=True, eq=False)
class Normalizer:
    mean: np.ndarray
    std: np.ndarray

    def normalize(self, x):
        return ((x - self.mean) / (self.std + 1e-8)).astype(np.float32)

    def denormalize(self, x):
        return (x * (self.std + 1e-8) + self.mean).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Statistics:
    state: Normalizer | None
    action: Normalizer | None
