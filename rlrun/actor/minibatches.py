"""Which rows meet in which optimizer step: fresh permutations, and equally many steps on every rank."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlrun.actor.process_group import Ranks


@dataclass(frozen=True)
class BatchPlan:
    """How many optimizer steps per epoch and forward passes per step all ranks take.

    Example: 2 ranks with 100 and 96 usable rows, global batch 64, micro-batch 16: 4 optimizer steps of
    25 or 24 rows per rank, each in 2 forward passes.
    """

    num_minibatches: int
    num_micro_batches: int

    @classmethod
    def of(cls, num_rows: int, ranks: Ranks, global_batch_size: int, micro_batch_size: int) -> BatchPlan:
        """Plan for `num_rows` usable rows on this rank; a collective. A rank short of rows still takes every step."""
        counts = ranks.gather(num_rows)
        num_minibatches = math.ceil(sum(counts) / global_batch_size)
        largest = math.ceil(max(counts) / max(1, num_minibatches))
        return cls(num_minibatches, max(1, math.ceil(largest / micro_batch_size)))

    def epoch(self, rows: np.ndarray, generator: np.random.Generator) -> list[list[np.ndarray]]:
        """The minibatches of one epoch: a fresh permutation of `rows`, nearly equal parts, each
        cut into nearly equal micro-batches. Empty where no rank has a usable row."""
        if self.num_minibatches == 0:
            return []
        return [self.split(part) for part in np.array_split(generator.permutation(rows), self.num_minibatches)]

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """The micro-batches of one minibatch; some are empty where this rank has fewer rows than others."""
        return np.array_split(rows, self.num_micro_batches)
