"""Weighted means of metrics over micro-batches, epochs and ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlrun.actor.process_group import Ranks


class MetricSums:
    """Adds numbers with weights; the means over all ranks are taken once, at the end.

    Example: add({"loss": 2.0}, 3) and add({"loss": 4.0}, 1) give {"loss": 2.5}.
    """

    def __init__(self) -> None:
        self._sums: dict[str, list[Tensor]] = {}

    def add(self, metrics: Mapping[str, Tensor | float], weight: Tensor | float) -> None:
        """Add each metric with its weight (how many tokens, rows or steps it is the mean of)."""
        for name, value in metrics.items():
            value, weight_ = (torch.as_tensor(x).detach().double().cpu() for x in (value, weight))
            pair = torch.stack([value * weight_, weight_]) if weight_ > 0 else torch.zeros(2, dtype=torch.float64)
            self._sums.setdefault(name, []).append(pair)

    def means(self, ranks: Ranks) -> dict[str, float]:
        """The mean of every metric over everything that all ranks added; a collective."""
        names = sorted(self._sums)
        if not names:
            return {}
        totals = ranks.sum(torch.stack([torch.stack(self._sums[name]).sum(0) for name in names]))
        return {
            name: float(total / weight.clamp(min=1e-12)) for name, (total, weight) in zip(names, totals, strict=True)
        }
