"""Metrics of an update: means over micro-batches and ranks, the change of the weights, and the gap to the rollout.

All ranks call `means` and `metrics`, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rlrun.actor.process_group import Ranks
from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.config.schema import RunConfig
from rlrun.edges.buckets import sample_values
from rlrun.edges.seeds import rollout_of

GAP = ("rollout_logprob_gap", "rollout_draws")  # the names of the gap's metrics begin with them


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


class WeightChange:
    """Norm of the change of the trained weights in an update, estimated from samples of every shard."""

    def __init__(self, shards: Mapping[str, Tensor]):
        """shards: the trained weights of this rank; `norm` reads the same tensors again."""
        self._shards = shards
        self._before = {name: sample_values(shard) for name, shard in shards.items()}

    def norm(self, ranks: Ranks) -> float:
        """Return the root of the sum of squares over all ranks; all ranks call it."""
        squares = [
            (sample_values(shard).double() - before.double()).square().sum() * (shard.numel() / max(1, before.numel()))
            for shard, before in zip(self._shards.values(), self._before.values(), strict=True)
        ]
        total = torch.stack(squares).sum().cpu() if squares else torch.zeros((), dtype=torch.float64)
        return float(ranks.sum(total.reshape(1))[0]) ** 0.5


class RolloutGap:
    """Sums over the rows that an update learns from before its first optimizer step moves the policy.

    They stay on the device until `metrics`. For honest draws, the sum of a row's log-probabilities and entropies has
    the mean 0, so that its sum over a worker's rows, by the root of the sum of squares, is about a standard normal.
    """

    def __init__(self, config: RunConfig, ranks: Ranks, num_rows: int, num_envs: int, device: torch.device):
        """num_rows: T*B; num_envs: B."""
        env = config.env
        num_workers = config.rollout.num_workers
        envs = ranks.rank * num_envs + np.arange(num_rows) % num_envs
        env_workers = envs * env.num_workers // env.num_envs
        rollout_workers = [rollout_of(int(worker), env.num_workers, num_workers) for worker in env_workers]
        self._workers = torch.tensor(rollout_workers, dtype=torch.int64, device=device)
        self._sums = torch.zeros(2, num_workers, dtype=torch.float64, device=device)  # gaps, choices
        # sums of rows, of their squares, and of the variances that the policy says
        self._draws = torch.zeros(3, num_workers, dtype=torch.float64, device=device)
        self._largest = torch.zeros(num_workers, dtype=torch.float64, device=device)
        self._ranks = ranks
        self.has_stepped = False  # whether the policy has taken an optimizer step since it acted

    def add(self, rows: Tensor, distribution: ActionDistribution, new: Tensor, old: Tensor, mask: Tensor) -> None:
        """Add rows. rows: int64 [R]; new, old: float32 [R, K]; mask: bool [R, K], False for rows that do not count."""
        if self.has_stepped:
            return
        workers = self._workers.index_select(0, rows)
        gaps = torch.where(mask, (new.detach() - old).abs(), 0.0).sum(1).double()
        counts = mask.sum(1).double()
        self._sums.index_add_(1, workers, torch.stack([gaps, counts]))
        if distribution.has_likelihood:
            with torch.no_grad():
                draws = torch.where(mask, old + distribution.entropy(), 0.0).sum(1).double()
                variance = distribution.logprob_variance()
                own = torch.zeros_like(draws) if variance is None else torch.where(mask, variance, 0.0).sum(1).double()
            self._draws.index_add_(1, workers, torch.stack([draws, draws.square(), own]))
        self._largest.scatter_reduce_(0, workers, gaps / counts.clamp(min=1), "amax")

    def metrics(self) -> dict[str, float]:
        """Return the metrics over all ranks; all ranks call it."""
        gaps, counts = self._ranks.sum(self._sums.cpu())
        largest = self._ranks.max(self._largest.cpu())
        means = gaps / counts.clamp(min=1)
        sums, squares, variances = self._ranks.sum(self._draws.cpu())
        deviations = sums / torch.maximum(squares, variances).sqrt().clamp(min=1e-12)
        least = torch.where(counts > 0, means, torch.inf).min()
        found = {
            "rollout_logprob_gap": float(means.max()),
            "rollout_logprob_gap_least": float(least if counts.any() else means.max()),
            "rollout_logprob_gap_max": float(largest.max()),
            "rollout_logprob_gap_worker": float(means.argmax()),
            "rollout_logprob_gap_max_worker": float(largest.argmax()),
        }
        if squares.any():
            found["rollout_draws"] = float(deviations[deviations.abs().argmax()])
            found["rollout_draws_worker"] = float(deviations.abs().argmax())
        return found
