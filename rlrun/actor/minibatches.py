"""Division of rows into optimizer steps: a new permutation per epoch, equally many steps on every rank."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlrun.actor.process_group import Ranks


@dataclass(frozen=True)
class BatchPlan:
    """The numbers of optimizer steps per epoch and forward passes per step, equal on all ranks.

    Example: 2 ranks with 100 and 96 usable rows, global batch 64, micro-batch 16: 4 optimizer steps of
    25 or 24 rows per rank, each in 2 forward passes.
    """

    num_minibatches: int
    num_micro_batches: int

    @classmethod
    def of(cls, num_rows: int, ranks: Ranks, global_batch_size: int, micro_batch_size: int) -> BatchPlan:
        """Plan for `num_rows` usable rows on this rank; all ranks call it. Ranks with fewer rows take every step."""
        counts = ranks.gather(num_rows)
        num_minibatches = math.ceil(sum(counts) / global_batch_size)
        largest = math.ceil(max(counts) / max(1, num_minibatches))
        return cls(num_minibatches, max(1, math.ceil(largest / micro_batch_size)))

    def epoch(self, rows: np.ndarray, generator: np.random.Generator) -> list[list[np.ndarray]]:
        """Return the minibatches of one epoch: a new permutation of `rows` in nearly equal parts, each divided into
        nearly equal micro-batches. Empty if no rank has a usable row."""
        if self.num_minibatches == 0:
            return []
        return [self.split(part) for part in np.array_split(generator.permutation(rows), self.num_minibatches)]

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the micro-batches of one minibatch; some are empty if this rank has fewer rows than others."""
        return np.array_split(rows, self.num_micro_batches)
