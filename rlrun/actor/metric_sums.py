"""Weighted means of metrics over micro-batches, epochs and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlrun.actor.process_group import Ranks


class MetricSums:
    """Weighted sums of metrics; computes the means over all ranks once, at the end.

    Example: add({"loss": 2.0}, 3) and add({"loss": 4.0}, 1) give {"loss": 2.5}.
    """

    def __init__(self) -> None:
        self._added: dict[str, list[tuple[Tensor | float, Tensor | float]]] = {}

    def add(self, metrics: Mapping[str, Tensor | float], weight: Tensor | float) -> None:
        """Add each metric with its weight (the number of tokens, rows or steps of the mean), without a computation."""
        weight = weight.detach() if isinstance(weight, Tensor) else weight
        for name, value in metrics.items():
            value = value.detach() if isinstance(value, Tensor) else value
            self._added.setdefault(name, []).append((value, weight))

    def means(self, ranks: Ranks) -> dict[str, float]:
        """Return the mean of every metric over all ranks; all ranks call it."""
        names = sorted(self._added)
        if not names:
            return {}
        sums = []
        for name in names:
            values, weights = (_numbers(column) for column in zip(*self._added[name], strict=True))
            sums.append(torch.stack([torch.where(weights > 0, values * weights, 0.0).sum(), weights.sum()]))
        totals = ranks.sum(torch.stack(sums))
        return {
            name: float(total / weight.clamp(min=1e-12)) for name, (total, weight) in zip(names, totals, strict=True)
        }


def _numbers(column: Sequence[Tensor | float]) -> Tensor:
    """Return float64 [n] on this host; all inputs have one type."""
    tensors = [number for number in column if isinstance(number, Tensor)]
    return torch.stack(tensors).double().cpu() if tensors else torch.tensor(column, dtype=torch.float64)
