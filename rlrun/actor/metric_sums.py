"""Weighted means of metrics over micro-batches, epochs and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlrun.actor.process_group import Ranks


class MetricSums:
    """Adds numbers with weights; the means over all ranks are taken once, at the end.

    Example: add({"loss": 2.0}, 3) and add({"loss": 4.0}, 1) give {"loss": 2.5}.
    """

    def __init__(self) -> None:
        self._added: dict[str, list[tuple[Tensor | float, Tensor | float]]] = {}

    def add(self, metrics: Mapping[str, Tensor | float], weight: Tensor | float) -> None:
        """Add each metric with its weight (how many tokens, rows or steps it is the mean of); nothing is computed."""
        weight = weight.detach() if isinstance(weight, Tensor) else weight
        for name, value in metrics.items():
            value = value.detach() if isinstance(value, Tensor) else value
            self._added.setdefault(name, []).append((value, weight))

    def means(self, ranks: Ranks) -> dict[str, float]:
        """The mean of every metric over everything that all ranks added; a collective."""
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
    """float64 [n], on this host; all of one kind."""
    tensors = [number for number in column if isinstance(number, Tensor)]
    return torch.stack(tensors).double().cpu() if tensors else torch.tensor(column, dtype=torch.float64)
