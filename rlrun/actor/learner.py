"""The learning half of one actor rank: updates by an algorithm, imitation steps, and weights to publish.

Shape legend: M chunk steps, C control steps per chunk, A action dimensions, K = C*A tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.actor.learning_batch import BatchPlan, LearningBatch, learning_batch, revalued
from rlrun.actor.lr_schedule import decayed
from rlrun.actor.metric_sums import MetricSums
from rlrun.actor.optimizer import GuardedOptimizer
from rlrun.actor.process_group import Ranks
from rlrun.actor.reference import ReferenceWeights
from rlrun.actor.sharding import DTYPES, ShardedPolicy, form_mesh
from rlrun.algorithms.algorithm import Algorithm, Losses, Outputs, Over, Targets
from rlrun.algorithms.losses import at_level, explained_variance, masked_mean
from rlrun.algorithms.spec import AlgorithmSpec
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import RunConfig
from rlrun.data.messages import Trajectory
from rlrun.observability.telemetry import Telemetry
from rlrun.policies.compilation import compile_policy
from rlrun.policies.offloading import Move

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from rlrun.policies.distributions import ActionDistribution
    from rlrun.policies.policy import Policy
    from rlrun.policies.stored_weights import StoredWeights


class Learner:
    """One rank of the actor. Every public method is a collective: all ranks call it, in the same order.

    The process group must have been joined (`actor.process_group.join`). The module of `policy`, whole
    or without memory, is sharded in place.
    """

    def __init__(
        self,
        config: RunConfig,
        policy: Policy,
        rank: int,
        world_size: int,
        device: torch.device | str,
        telemetry: Telemetry,
        mesh: DeviceMesh | None = None,
        weights: StoredWeights | None = None,
    ):
        """With a `mesh` (`sharding.form_mesh`), construction needs no other rank, so ranks may load in waves.

        weights: stored weights for a policy on the meta device, of which each rank reads its shards.
        """
        self.config = config
        self.policy = policy
        self.device = torch.device(device)
        self.telemetry = telemetry
        self.ranks = Ranks(self.device)
        if (rank, world_size) != (self.ranks.rank, self.ranks.world_size):
            raise ValueError(f"rank {rank} of {world_size} was asked for, but the process group says {self.ranks}")
        spec: AlgorithmSpec = ALGORITHMS.get(config.algorithm.name)
        self.has_critic = spec.has_critic
        self.algorithm: Algorithm = spec.make(config.algorithm)
        if not self.has_critic:  # do not train a value head, nor keep optimizer state for it
            _freeze_value_head(policy.module)
        policy.device = self.device
        policy.use_attention(config.policy.attention, config.actor.param_precision)
        compile_policy(policy, config.policy.compile_backend)
        if mesh is None:
            mesh = form_mesh(config.actor, self.ranks, self.device, config.cluster.start_deadline_s)
        self.sharded = ShardedPolicy(policy, config.actor, self.device, mesh, weights)
        actor, sft = config.actor, config.sft
        rates = (actor.lr, actor.value_lr, actor.lr_warmup_steps)
        self.optimizer = GuardedOptimizer(policy.module, actor, *rates, decay=self._decay)
        self.imitation_optimizer = GuardedOptimizer(policy.module, actor, sft.lr, sft.lr, sft.lr_warmup_steps)
        self.reference: ReferenceWeights | None = None
        self.num_updates = 0  # training steps done, counted over resumes

    def update(self, trajectory: Trajectory, version: int | None = None) -> dict[str, float]:
        """Learn from this rank's share of a training step's trajectory. Returns metrics averaged over all ranks.

        version: of the present policy. Decoupled PPO learns from chunk steps of an older version, unless it is switched
        off. None: all chunk steps are of this version. The metric num_nonfinite counts those of num_optimizer_steps
        that were skipped for non-finite gradients.
        """
        self.sharded.offloader.require_device("an update")
        config = self.config.algorithm
        results = [
            self._learn(learned, version, number * config.update_epochs)
            for number, learned in enumerate(self.algorithm.learned_from(trajectory))
        ]
        self.policy.observe(trajectory.proprio[trajectory.valid], self.ranks.sum)
        self.num_updates += 1
        return {name: float(np.mean([metrics[name] for metrics in results])) for name in results[0]}

    def _learn(self, trajectory: Trajectory, version: int | None, first_epoch: int) -> dict[str, float]:
        """Run all epochs over one trajectory."""
        config = self.config.algorithm
        batch = learning_batch(trajectory, self.algorithm, self.ranks.sum)
        plan = BatchPlan.of(len(batch.usable), self.ranks, config.global_batch_size, self.config.actor.micro_batch_size)
        if config.kl_coef > 0 and self.reference is None:
            self.reference = ReferenceWeights(self.sharded)
        reference = None
        if self.reference is not None:
            with self.reference.in_place():
                reference = self._judged(batch, plan, of_reference=True)[0]
        if config.behavior_weight_cap is not None and version is not None:
            is_old = bool((trajectory.policy_version < version)[trajectory.valid].any())
            if self.ranks.any(is_old):
                batch = self._renewed(trajectory, batch, plan)
        sums = MetricSums()
        metrics = self._epochs(batch, plan, reference, sums, first_epoch)
        return {**sums.means(self.ranks), **metrics, **self._batch_metrics(batch)}

    def _decay(self) -> float:
        """Return the factor of the learning rates in this training step."""
        actor = self.config.actor
        return decayed(actor.lr_schedule, self.num_updates / max(1, self.config.num_steps), actor.min_lr_ratio)

    def weight_layout(self) -> list[tuple[str, Tensor]]:
        """Return (name, shard) of all weights of a rollout worker, for names, shapes and order; no communication."""
        return self.sharded.sent_shards()

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, whole tensor) in the order of `weight_layout`, one at a time, in the rollout's precision.

        Gathering is a collective: every rank must exhaust the iterator; ranks other than 0 drop what they get.
        """
        for gathered in self.sharded.full_tensors(self.weight_layout(), DTYPES[self.config.rollout.precision]):
            self.telemetry.count("gathered_tensors")
            yield gathered

    def restore_reference(self, shards: dict[str, Tensor]) -> None:
        """Take the reference policy from a checkpoint; without shards the next update makes a new one."""
        self.reference = None
        if shards:
            self.reference = ReferenceWeights(self.sharded)
            self.reference.shards = shards

    def forward(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, tokens: Tensor | None = None
    ) -> tuple[ActionDistribution, Tensor | None]:
        """Return the action distribution of M rows, and values float32 [M], or None without a value head.

        tokens: [M, ...], the only ones about which the distribution will be asked; None: it draws.
        """
        temperature = self.config.rollout.temperature
        if tokens is None:
            return self.policy(images, instructions, proprio, temperature)
        return self.policy.evaluate(images, instructions, proprio, temperature, tokens)

    def offload(self) -> Move:
        """Move shards, optimizer state and reference to host memory, so that another role can use the accelerator."""
        self.sharded.reshard()
        tensors: list[Tensor] = [*self.sharded.module.parameters(), *self.sharded.module.buffers()]
        for optimizer in (self.optimizer, self.imitation_optimizer):
            optimizer.clear()
            tensors += [t for state in optimizer.inner.state.values() for t in state.values() if isinstance(t, Tensor)]
        tensors += [] if self.reference is None else self.reference.shards.values()
        return self.sharded.offloader.offload(tensors)

    def onload(self) -> Move:
        """Move back to the accelerator. Raises RunError if its memory is too small."""
        return self.sharded.offloader.onload()

    def _epochs(
        self, batch: LearningBatch, plan: BatchPlan, reference: Tensor | None, sums: MetricSums, first_epoch: int
    ) -> dict[str, float]:
        """Take all optimizer steps of one update, up to `algorithm.target_kl`. All ranks take the same branches."""
        config = self.config.algorithm
        num_steps = num_nonfinite = 0
        is_stopped = False
        for epoch in range(first_epoch, first_epoch + config.update_epochs):
            generator = np.random.default_rng((self.config.seed, self.num_updates, epoch, self.ranks.rank))
            for micro_batches in plan.epoch(batch.usable, generator):
                moved = self._accumulate(batch, micro_batches, reference, sums, is_first=num_steps == 0)
                if config.target_kl is not None and self._mean_over_ranks(moved) > config.target_kl:
                    self.optimizer.clear()
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
            "lr": self.optimizer.lr,
        }

    def _step(self, sums: MetricSums) -> bool:
        if not self.algorithm.trains_policy(self.num_updates):
            self.optimizer.keep_only_value_head()
        norm, is_finite = self.optimizer.step(self.ranks)
        sums.add({"grad_norm": norm}, float(is_finite))
        self.telemetry.count("optimizer_steps")
        return is_finite

    def _accumulate(
        self,
        batch: LearningBatch,
        micro_batches: list[np.ndarray],
        reference: Tensor | None,
        sums: MetricSums,
        is_first: bool,
    ) -> Tensor:
        """Compute the gradients of one minibatch over all ranks. Returns this rank's (sum of k3, count of units)."""
        counts_by_part = np.stack([batch.counts[rows].sum(0) for rows in micro_batches])
        all_counts = self.ranks.sum(torch.from_numpy(counts_by_part.sum(0))).clamp(min=1).numpy()
        shares_by_part = counts_by_part / all_counts * self.ranks.world_size  # FSDP averages over ranks
        moved = torch.zeros(2, dtype=torch.float64, device=self.device)  # stays there, so that nothing waits for it
        parts = zip(micro_batches, counts_by_part.tolist(), shares_by_part.tolist(), strict=True)
        for i, (rows, counts, shares) in enumerate(parts):
            self.sharded.begin_backward(is_last=i == len(micro_batches) - 1)
            loss, kl_sum = self._micro_loss(batch, rows, reference, counts, shares, sums, is_first)
            loss.backward()
            moved += kl_sum
            self.telemetry.count("learned_chunk_steps", len(rows))
        return moved

    def _mean_over_ranks(self, sum_and_count: Tensor) -> float:
        total, count = self.ranks.sum(sum_and_count.cpu())
        return float(total / count.clamp(min=1))

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
        is_first: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return this micro-batch's part of the minibatch loss, and (sum of k3, count) of its units.

        counts: `batch.counts` of its rows. shares: of the minibatch's counts, so that every token has equal weight in
        any micro-batch.
        """
        targets = batch.rows(rows, self.device)
        at = rows if len(rows) else np.zeros(1, np.int64)
        distribution, values = self.forward(batch.images[at], batch.sentences(at), batch.proprio[at], targets.tokens)
        logprobs = distribution.logprobs(targets.tokens)
        outputs = Outputs(
            distribution,
            logprobs,
            self._at_level(logprobs, targets.token_mask),
            values,
            batch.unit_logprobs[at].to(self.device) if batch.is_old else None,
            None if reference is None else reference[at].to(self.device),
        )
        if is_first:
            gap = (logprobs.detach() - batch.old_logprobs[at].to(self.device)).abs()
            sums.add({"rollout_logprob_gap": masked_mean(gap, targets.token_mask)}, targets.token_mask.sum())
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
            distribution, valued = self.forward(batch.images[at], batch.sentences(at), batch.proprio[at], tokens)
            judged = distribution.statistic(tokens) if of_reference else distribution.logprobs(tokens)
            logprobs[at] = judged.float().cpu()
            if valued is not None:
                values[at] = valued.float().cpu()
        self.sharded.reshard()
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


def _freeze_value_head(policy: nn.Module) -> None:
    for name, parameter in policy.named_parameters():
        if "value_head." in name:
            parameter.requires_grad_(False)
