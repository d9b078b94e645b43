"""The updates of on-policy algorithms: minibatches, micro-batches, ranks, the first policy, and older data.

Shape legend: M chunk steps, K choices of a chunk step, U units that get one probability ratio each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from rlrun.actor.learner import ReferenceWeights, TrainedPolicy
from rlrun.actor.learning_batch import BatchPlan, LearningBatch, chunk_steps, learning_batch, revalued
from rlrun.actor.process_group import Ranks
from rlrun.algorithms.algorithm import Algorithm, Losses, OffPolicyAlgorithm, Outputs, Over, Targets
from rlrun.algorithms.losses import at_level, explained_variance, masked_mean
from rlrun.config.schema import RunConfig
from rlrun.data.messages import Trajectory
from rlrun.data.seeds import rollout_of


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


class RolloutGap:
    """Sums over the first epoch of an update; it stays on the device until `metrics`."""

    def __init__(self, config: RunConfig, ranks: Ranks, num_rows: int, num_envs: int, device: torch.device):
        """num_rows: T*B; num_envs: B."""
        env, num_workers = config.env, config.rollout.num_workers
        envs = ranks.rank * num_envs + np.arange(num_rows) % num_envs
        env_workers = envs * env.num_workers // env.num_envs
        self._workers = np.array([rollout_of(int(w), env.num_workers, num_workers) for w in env_workers], np.int64)
        self._sums = torch.zeros(2, num_workers, dtype=torch.float64, device=device)  # first minibatch: gaps, choices
        self._largest = torch.zeros(num_workers, dtype=torch.float64, device=device)
        self._ranks = ranks

    def add(self, rows: np.ndarray, new: Tensor, old: Tensor, mask: Tensor, is_first: bool) -> None:
        """Add rows. new, old: float32 [R, K]; mask: bool [R, K]. is_first: the policy has not moved yet."""
        if not len(rows):
            return
        workers = torch.from_numpy(self._workers[rows]).to(self._largest.device)
        gaps = torch.where(mask, (new.detach() - old).abs(), 0.0).sum(1).double()
        counts = mask.sum(1).double()
        if is_first:
            self._sums.index_add_(1, workers, torch.stack([gaps, counts]))
        self._largest.scatter_reduce_(0, workers, gaps / counts.clamp(min=1), "amax")

    def metrics(self) -> dict[str, float]:
        """Return the metrics over all ranks; all ranks call it."""
        gaps, counts = self._ranks.sum(self._sums.cpu())
        largest = self._ranks.max(self._largest.cpu())
        return {
            "rollout_logprob_gap": float((gaps / counts.clamp(min=1)).max()),
            "rollout_logprob_gap_max": float(largest.max()),
            "rollout_logprob_gap_worker": float(largest.argmax()),
        }


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


def off_policy_update(
    trained: TrainedPolicy, algorithm: OffPolicyAlgorithm, trajectory: Trajectory
) -> dict[str, float]:
    """Let the algorithm learn after a training step. A collective. Returns metrics over all ranks."""
    learning = PolicyLearning(trained)
    metrics = algorithm.update(chunk_steps(trajectory, algorithm.config), trajectory, learning)
    trained.sharded.reshard()
    trained.telemetry.count("learned_chunk_steps", int(trajectory.valid.sum()))
    return learning.sums.means(trained.ranks) | {"lr": trained.optimizer.lr} | metrics


class PolicyLearning:
    """What `rlrun.algorithms.algorithm.Learning` describes, during one training step."""

    def __init__(self, trained: TrainedPolicy):
        self._trained = trained
        self.policy, self.device, self.num_updates = trained.policy, trained.device, trained.num_updates
        self.world_size = trained.ranks.world_size
        entropy = (trained.config.seed, trained.num_updates, trained.ranks.rank)
        self.random = torch.Generator().manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
        self.sums = MetricSums()
        trained.sharded.begin_backward(is_last=True)

    def step(self, loss: Tensor) -> bool:
        """Take one optimizer step of the policy."""
        loss.backward()
        norm, is_finite = self._trained.optimizer.step(self._trained.ranks)
        self.sums.add({"grad_norm": norm}, float(is_finite))
        self._trained.telemetry.count("optimizer_steps")
        return is_finite

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        return self._trained.ranks.sum(x)

    def any(self, flag: bool) -> bool:
        """Return True on every rank if it is true on any."""
        return self._trained.ranks.any(flag)


class Learner(TrainedPolicy):
    """A policy in training that learns from trajectories. Every public method is a collective."""

    def update(self, trajectory: Trajectory, version: int | None = None) -> dict[str, float]:
        """Learn from this rank's share of a training step's trajectory. Returns metrics over all ranks.

        version: of the present policy. Decoupled PPO learns from chunk steps of an older version, unless it is switched
        off. None: all chunk steps are of this version. The metric num_nonfinite counts those of num_optimizer_steps
        that were skipped for non-finite gradients.
        """
        self.sharded.offloader.require_device("an update")
        if isinstance(self.algorithm, OffPolicyAlgorithm):
            metrics = off_policy_update(self, self.algorithm, trajectory)
        else:
            metrics = OnPolicyUpdates(self, self.algorithm).update(trajectory, version)
        self.policy.observe(trajectory.proprio[trajectory.valid], self.ranks.sum)
        self.num_updates += 1
        return metrics
