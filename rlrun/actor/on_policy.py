"""The updates of on-policy algorithms: minibatches, micro-batches, ranks, the first policy, and older data.

Shape legend: M chunk steps, K choices of a chunk step, U units that get one probability ratio each.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlrun.actor.learning_batch import BatchPlan, LearningBatch, learning_batch, revalued
from rlrun.actor.metric_sums import MetricSums, RolloutGap
from rlrun.actor.reference import ReferenceWeights
from rlrun.algorithms.algorithm import Algorithm, Losses, Outputs, Over, Targets
from rlrun.algorithms.losses import at_level, explained_variance, masked_mean
from rlrun.data.messages import Trajectory

if TYPE_CHECKING:
    from rlrun.actor.trained_policy import TrainedPolicy


class OnPolicyUpdates:
    """Every public method is a collective."""

    def __init__(self, trained: TrainedPolicy, algorithm: Algorithm):
        self.trained, self.algorithm = trained, algorithm
        self.config, self.ranks, self.device = trained.config, trained.ranks, trained.device
        self.has_critic = trained.has_critic

    def update(self, trajectory: Trajectory, version: int | None) -> dict[str, float]:
        """Run all epochs over the trajectory. Returns metrics over all ranks."""
        config = self.config.algorithm
        batch = learning_batch(trajectory, self.algorithm, self.ranks.sum)
        plan = BatchPlan.of(len(batch.usable), self.ranks, config.global_batch_size, self.config.actor.micro_batch_size)
        if config.kl_coef > 0 and self.trained.reference is None:
            self.trained.reference = ReferenceWeights(self.trained.sharded)
        reference = None
        if self.trained.reference is not None:
            with self.trained.reference.in_place():
                reference = self._judged(batch, plan, of_reference=True)[0]
        if config.behavior_weight_cap is not None and version is not None:
            is_old = bool((trajectory.policy_version < version)[trajectory.valid].any())
            if self.ranks.any(is_old):
                batch = self._renewed(trajectory, batch, plan)
        sums = MetricSums()
        gap = RolloutGap(self.config, self.ranks, len(batch.tokens), trajectory.valid.shape[1], self.device)
        metrics = self._epochs(batch, plan, reference, sums, gap)
        return {**sums.means(self.ranks), **metrics, **gap.metrics(), **self._batch_metrics(batch)}

    def _epochs(
        self, batch: LearningBatch, plan: BatchPlan, reference: Tensor | None, sums: MetricSums, gap: RolloutGap
    ) -> dict[str, float]:
        """Take all optimizer steps of one update, up to `algorithm.target_kl`. All ranks take the same branches."""
        config = self.config.algorithm
        num_steps = num_nonfinite = 0
        is_stopped = False
        for epoch in range(config.update_epochs):
            generator = np.random.default_rng((self.config.seed, self.trained.num_updates, epoch, self.ranks.rank))
            for micro_batches in plan.epoch(batch.usable, generator):
                own = gap if epoch == 0 else None
                moved = self._accumulate(batch, micro_batches, reference, sums, own, is_first=num_steps == 0)
                if config.target_kl is not None and self._mean_over_ranks(moved) > config.target_kl:
                    self.trained.optimizer.clear()
                    is_stopped = True
                    break
                num_nonfinite += not self._step(sums)
                num_steps += 1
            if is_stopped:
                break
        return {
            "num_optimizer_steps": float(num_steps),
            "num_nonfinite": float(num_nonfinite),
            "is_kl_stopped": float(is_stopped),
            "lr": self.trained.optimizer.lr,
        }

    def _step(self, sums: MetricSums) -> bool:
        if not self.algorithm.trains_policy(self.trained.num_updates):
            self.trained.optimizer.keep_only_value_head()
        norm, is_finite = self.trained.optimizer.step(self.ranks)
        sums.add({"grad_norm": norm}, float(is_finite))
        self.trained.telemetry.count("optimizer_steps")
        return is_finite

    def _accumulate(
        self,
        batch: LearningBatch,
        micro_batches: list[np.ndarray],
        reference: Tensor | None,
        sums: MetricSums,
        gap: RolloutGap | None,
        is_first: bool,
    ) -> Tensor:
        """Compute the gradients of one minibatch over all ranks. Returns this rank's (sum of k3, count of units)."""
        counts_by_part = np.stack([batch.counts[rows].sum(0) for rows in micro_batches])
        all_counts = self.ranks.sum(torch.from_numpy(counts_by_part.sum(0))).clamp(min=1).numpy()
        shares_by_part = counts_by_part / all_counts * self.ranks.world_size  # FSDP averages over ranks
        moved = torch.zeros(2, dtype=torch.float64, device=self.device)  # stays there, so that nothing waits for it
        parts = zip(micro_batches, counts_by_part.tolist(), shares_by_part.tolist(), strict=True)
        for i, (rows, counts, shares) in enumerate(parts):
            self.trained.sharded.begin_backward(is_last=i == len(micro_batches) - 1)
            loss, kl_sum = self._micro_loss(batch, rows, reference, counts, shares, sums, gap, is_first)
            loss.backward()
            moved += kl_sum
            self.trained.telemetry.count("learned_chunk_steps", len(rows))
        return moved

    def _mean_over_ranks(self, sum_and_count: Tensor) -> float:
        total, count = self.ranks.sum(sum_and_count.cpu())
        return float(total / count.clamp(min=1))

    def _forward(self, batch: LearningBatch, rows: np.ndarray, tokens: Tensor) -> tuple:
        """Return the distribution and the values of chunk steps, to learn from `tokens`."""
        return self.trained.forward(batch.images[rows], batch.sentences(rows), batch.proprio[rows], tokens)

    def _at_level(self, logprobs: Tensor, token_mask: Tensor) -> Tensor:
        """Return log-probabilities by unit: float32 [M, U] of float32 [M, K]."""
        config = self.config
        return at_level(logprobs, token_mask, config.algorithm.ratio_level.value, config.policy.num_action_chunks)[0]

    def _micro_loss(
        self,
        batch: LearningBatch,
        rows: np.ndarray,
        reference: Tensor | None,
        counts: list[float],
        shares: list[float],
        sums: MetricSums,
        gap: RolloutGap | None,
        is_first: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return this micro-batch's part of the minibatch loss, and (sum of k3, count) of its units.

        counts: `batch.counts` of its rows. shares: of the minibatch's counts, so that every token has equal weight in
        any micro-batch.
        """
        targets = batch.rows(rows, self.device)
        at = rows if len(rows) else np.zeros(1, np.int64)
        distribution, values = self._forward(batch, at, targets.tokens)
        logprobs = distribution.logprobs(targets.tokens)
        outputs = Outputs(
            distribution,
            logprobs,
            self._at_level(logprobs, targets.token_mask),
            values,
            batch.unit_logprobs[at].to(self.device) if batch.is_old else None,
            None if reference is None else reference[at].to(self.device),
        )
        if gap is not None:
            gap.add(rows, logprobs, batch.old_logprobs[at].to(self.device), targets.token_mask, is_first)
        losses = self.algorithm.loss(outputs, targets)
        weights = dict(zip(Over, counts, strict=True))
        _log(losses, targets, weights, sums)
        share = dict(zip(Over, shares, strict=True))
        loss = torch.stack([term.mean * (term.coefficient * share[term.over]) for term in losses.terms]).sum()
        num_units = targets.unit_mask.sum()
        moved = num_units.new_zeros(()) if losses.moved is None else losses.moved.detach()
        return loss, torch.stack([moved * num_units, num_units]).double()

    def _renewed(self, trajectory: Trajectory, batch: LearningBatch, plan: BatchPlan) -> LearningBatch:
        """Return a batch of an older policy with the present policy's log-probabilities for ratios, and its values."""
        config = self.config.algorithm
        logprobs, values = self._judged(batch, plan)
        if self.has_critic:
            batch = learning_batch(revalued(trajectory, values.numpy(), config), self.algorithm, self.ranks.sum)
        proximal = self._at_level(logprobs, batch.token_mask)
        return dataclasses.replace(batch, proximal_logprobs=proximal, is_old=True)

    @torch.no_grad()
    def _judged(self, batch: LearningBatch, plan: BatchPlan, of_reference: bool = False) -> tuple[Tensor, Tensor]:
        """Return the present policy's log-probabilities of the tokens, float32 [M, K], and values, float32 [M].

        Both are 0 for unusable rows; values are 0 without a value head. of_reference: in place of log-probabilities,
        what the distributions' KL needs of a reference policy.
        """
        logprobs, values = torch.zeros(batch.old_logprobs.shape), torch.zeros(len(batch.tokens))
        for rows in np.array_split(batch.usable, plan.num_minibatches * plan.num_micro_batches):
            at = rows if len(rows) else np.zeros(1, np.int64)
            tokens = batch.tokens[at].to(self.device)
            distribution, valued = self._forward(batch, at, tokens)
            judged = distribution.statistic(tokens) if of_reference else distribution.logprobs(tokens)
            logprobs[at] = judged.float().cpu()
            if valued is not None:
                values[at] = valued.float().cpu()
        self.trained.sharded.reshard()
        return logprobs, values

    def _batch_metrics(self, batch: LearningBatch) -> dict[str, float]:
        """Return statistics of the training step's returns and advantages, over all ranks."""
        mask = batch.row_mask
        sums = MetricSums()
        raw = torch.where(mask, batch.raw_advantages, 0.0)
        means = {"advantage_mean": masked_mean(raw, mask), "advantage_abs": masked_mean(raw.abs(), mask)}
        if self.has_critic:
            means |= {
                "return_mean": masked_mean(batch.returns, mask),
                "value_mean": masked_mean(batch.old_values, mask),
            }
        sums.add(means, mask.sum())
        metrics = sums.means(self.ranks)
        metrics["num_chunk_steps"] = float(self.ranks.sum(mask.sum().reshape(1).double())[0])
        if self.has_critic:
            explained = explained_variance(batch.old_values, batch.returns, mask, self.ranks.sum)
            metrics["explained_variance"] = float(explained)
        return metrics


def _log(losses: Losses, targets: Targets, counts: dict[Over, float], sums: MetricSums) -> None:
    """Log losses and metrics. counts: the divisors of the losses' means; metrics divide by the masks' counts."""
    masks = {Over.units: targets.unit_mask, Over.tokens: targets.token_mask, Over.rows: targets.row_mask}
    for term in losses.terms:
        if term.name is not None:
            sums.add({term.name: term.mean}, counts[term.over])
    for over, numbers in losses.metrics.items():
        sums.add(numbers, masks[over].sum())
