"""Updates of a learner: on-policy (minibatches, micro-batches, ranks, the first policy, older data) and off-policy.

All ranks call every public function, in the same order.

Shape legend: M chunk steps, K choices of a chunk step, U units that get one probability ratio each.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from rlrun.actor.imitation import DemonstrationBatch, DemonstrationSource, add_imitation_gradients
from rlrun.actor.learner import Learner, ReferenceWeights, trained_shards
from rlrun.actor.learning_batch import (
    BatchPlan,
    LearningBatch,
    MicroBatch,
    chunk_steps,
    learning_batch,
    padded,
    with_values,
)
from rlrun.actor.update_metrics import GAP, MetricSums, RolloutGap, WeightChange
from rlrun.algorithms.algorithm import Algorithm, Losses, OffPolicyAlgorithm, Outputs, Reduction, Targets, UpdateContext
from rlrun.algorithms.losses import aggregate_logprobs, explained_variance, masked_mean
from rlrun.config.schema import MinibatchOf
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.offloading import local
from rlrun.policies.upload import uploaded


def update(
    learner: Learner,
    trajectory: Trajectory,
    version: int | None = None,
    demonstrations: DemonstrationSource | None = None,
) -> dict[str, float]:
    """Learn from this rank's share of a training step's trajectory. Returns metrics over all ranks.

    version: of the present policy. Decoupled PPO learns from chunk steps of an older version, unless it is switched
    off. None: all chunk steps are of this version. demonstrations: imitated in every optimizer step, with the weight
    `algorithm.imitation_coef`. The metric num_nonfinite counts those of num_optimizer_steps
    that were skipped for non-finite gradients.
    """
    learner.sharded.offloader.require_device("an update")
    change = WeightChange({name: local(shard) for name, shard in trained_shards(learner.sharded).items()})
    if isinstance(learner.algorithm, OffPolicyAlgorithm):
        metrics = off_policy_update(learner, learner.algorithm, trajectory)
    else:
        with learner.learning() as is_acting:
            metrics = on_policy_update(learner, learner.algorithm, trajectory, version, demonstrations)
        if not is_acting:  # the gap to the policy that acted is no fault
            metrics = {name: value for name, value in metrics.items() if not name.startswith(GAP)}
    metrics["weight_change"] = change.norm(learner.ranks)
    learner.settle_kernels()
    learner.policy.observe(trajectory.proprio[trajectory.valid], learner.ranks.sum)
    learner.num_updates += 1
    return metrics


def on_policy_update(
    learner: Learner,
    algorithm: Algorithm,
    trajectory: Trajectory,
    version: int | None,
    demonstrations: DemonstrationSource | None = None,
) -> dict[str, float]:
    """Run all epochs over the trajectory. Returns metrics over all ranks."""
    config = learner.config.algorithm
    ranks = learner.ranks
    batch = learning_batch(trajectory, algorithm, ranks.sum, learner.config.env.action_delay)
    plan = _batch_plan(learner, batch)
    if config.kl_coef > 0 and learner.reference is None:
        learner.reference = ReferenceWeights(learner.sharded)
    if learner.reference is not None:
        with learner.reference.in_place():
            reference = _recompute_logprobs(learner, batch, plan, of_reference=True)[0]
        batch = dataclasses.replace(batch, reference=reference)
    if config.behavior_weight_cap is not None and version is not None:
        is_old = bool((trajectory.policy_version < version)[trajectory.valid].any())
        if ranks.any(is_old):
            batch = _with_proximal_policy(learner, algorithm, trajectory, batch, plan)
    sums = MetricSums()
    gap = RolloutGap(learner.config, ranks, len(batch.tokens), trajectory.valid.shape[1], learner.device)
    metrics = _epochs(learner, algorithm, batch, plan, sums, gap, demonstrations)
    return {**sums.means(ranks), **metrics, **gap.metrics(), **_batch_metrics(learner, batch)}


def _batch_plan(learner: Learner, batch: LearningBatch) -> BatchPlan:
    """Plan the minibatches of all epochs. All ranks call it."""
    config = learner.config.algorithm
    ranks = learner.ranks
    rows_of_pass = learner.config.actor.micro_batch_size
    if config.minibatch_of is not MinibatchOf.episodes:
        is_by_usable = config.minibatch_of is MinibatchOf.chunk_steps
        num_collected = None if is_by_usable else len(batch.row_mask) * ranks.world_size
        return BatchPlan.for_rows(len(batch.usable), ranks, config.global_batch_size, rows_of_pass, num_collected)
    generators = (_order(learner, epoch) for epoch in range(config.update_epochs))
    num_together = config.global_batch_size // config.horizon
    return BatchPlan.for_episodes(batch.usable_episode, ranks, num_together, rows_of_pass, generators)


def _order(learner: Learner, epoch: int) -> np.random.Generator:
    """Return the generator that draws the minibatches of an epoch."""
    return np.random.default_rng((learner.config.seed, learner.num_updates, epoch, learner.ranks.rank))


def _epochs(
    learner: Learner,
    algorithm: Algorithm,
    batch: LearningBatch,
    plan: BatchPlan,
    sums: MetricSums,
    gap: RolloutGap,
    demonstrations: DemonstrationSource | None,
) -> dict[str, float]:
    """Take all optimizer steps of one update, up to `algorithm.target_kl`. All ranks take the same branches."""
    config = learner.config.algorithm
    num_steps = num_nonfinite = 0
    is_stopped = False
    episode = batch.usable_episode if config.minibatch_of is MinibatchOf.episodes else None
    for epoch in range(config.update_epochs):
        for micro_batches in plan.epoch(batch.usable, _order(learner, epoch), episode):
            own_gap = gap if epoch == 0 else None
            # while the critic warms up, the policy's gradients are dropped, and so would be those of demonstrations
            is_beside = demonstrations is not None and algorithm.trains_policy(learner.num_updates)
            beside = demonstrations(learner.num_updates, num_steps) if demonstrations and is_beside else None
            kl = _accumulate_gradients(learner, algorithm, batch, plan, micro_batches, sums, own_gap, beside)
            if config.target_kl is not None and _mean_over_ranks(learner, kl) > config.target_kl:
                learner.optimizer.clear()
                is_stopped = True
                break
            num_nonfinite += not _optimizer_step(learner, algorithm, sums)
            num_steps += 1
            gap.has_stepped = True
        if is_stopped:
            break
    return {
        "num_optimizer_steps": float(num_steps),
        "num_nonfinite": float(num_nonfinite),
        "is_kl_stopped": float(is_stopped),
        "lr": learner.optimizer.lr,
    }


def _optimizer_step(learner: Learner, algorithm: Algorithm, sums: MetricSums) -> bool:
    if not algorithm.trains_policy(learner.num_updates):
        learner.optimizer.keep_only_value_head()
    norm, is_finite = learner.optimizer.step(learner.ranks)
    sums.add({"grad_norm": norm}, float(is_finite))
    learner.telemetry.count("optimizer_steps")
    return is_finite


def _accumulate_gradients(
    learner: Learner,
    algorithm: Algorithm,
    batch: LearningBatch,
    plan: BatchPlan,
    micro_batches: list[np.ndarray],
    sums: MetricSums,
    gap: RolloutGap | None,
    beside: DemonstrationBatch | None,
) -> Tensor:
    """Compute the gradients of one minibatch over all ranks, and of demonstrations beside it.

    Returns this rank's (sum of the KL, count of units).
    """
    counts_by_part = np.stack([batch.counts[rows].sum(0) for rows in micro_batches])
    all_counts = learner.ranks.sum(torch.from_numpy(counts_by_part.sum(0))).numpy()
    divisors = np.where(all_counts > 0, all_counts, 1)  # a part of one episode is less than 1
    shares_by_part = counts_by_part / divisors * learner.ranks.world_size  # FSDP averages over ranks
    kl = torch.zeros(2, dtype=torch.float64, device=learner.device)  # stays there, so that nothing waits for it
    parts = zip(micro_batches, counts_by_part.tolist(), shares_by_part.tolist(), strict=True)
    for i, (rows, counts, shares) in enumerate(parts):
        learner.sharded.begin_backward(is_last=beside is None and i == len(micro_batches) - 1)
        at = padded(rows, learner.rows_of_pass(plan.num_rows))
        given = batch.rows(at, len(rows), learner.device)
        loss, kl_part = _micro_batch_loss(learner, algorithm, batch, at, given, counts, shares, sums, gap)
        loss.backward()
        kl += kl_part
        learner.telemetry.count("learned_chunk_steps", len(rows))
    if beside is not None:
        add_imitation_gradients(learner, beside, learner.config.algorithm.imitation_coef, sums)
    return kl


def _mean_over_ranks(learner: Learner, sum_and_count: Tensor) -> float:
    total, count = learner.ranks.sum(sum_and_count.cpu())
    return float(total / count.clamp(min=1))


def _micro_batch_loss(
    learner: Learner,
    algorithm: Algorithm,
    batch: LearningBatch,
    rows: np.ndarray,
    given: MicroBatch,
    counts: list[float],
    shares: list[float],
    sums: MetricSums,
    gap: RolloutGap | None,
) -> tuple[Tensor, Tensor]:
    """Return this micro-batch's part of the minibatch loss, and (sum of the KL, count) of its units.

    given: its `rows` on the device. counts: `batch.counts` of those that count. shares: of the minibatch's counts, so
    that a token has the same weight in any micro-batch.
    """
    targets = given.targets
    distribution, values = _forward(learner, batch, rows, targets.tokens)
    logprobs = distribution.logprobs(targets.tokens)
    outputs = Outputs(
        distribution,
        logprobs,
        _unit_logprobs(learner, logprobs, targets.token_mask),
        values,
        given.unit_logprobs,
        given.reference,
    )
    if gap is not None:
        gap.add(given.index, distribution, logprobs, given.old_logprobs, targets.token_mask)
    losses = algorithm.loss(outputs, targets)
    _log(losses, targets, dict(zip(Reduction, counts, strict=True)), sums)
    share = dict(zip(Reduction, shares, strict=True))
    loss = torch.stack([term.mean * (term.coefficient * share[term.over]) for term in losses.terms]).sum()
    num_units = targets.unit_mask.sum()
    kl = num_units.new_zeros(()) if losses.approx_kl is None else losses.approx_kl.detach()
    return loss, torch.stack([kl * num_units, num_units]).double()


def _forward(learner: Learner, batch: LearningBatch, rows: np.ndarray, tokens: Tensor) -> tuple:
    """Return the distribution and the values of chunk steps, to learn from `tokens`."""
    return learner.forward(batch.images[rows], batch.sentences(rows), batch.proprio[rows], tokens)


def _unit_logprobs(learner: Learner, logprobs: Tensor, token_mask: Tensor) -> Tensor:
    """Return log-probabilities by unit: float32 [M, U] of float32 [M, K]."""
    config = learner.config
    return aggregate_logprobs(
        logprobs, token_mask, config.algorithm.ratio_level.value, config.policy.num_action_chunks
    )[0]


def _with_proximal_policy(
    learner: Learner, algorithm: Algorithm, trajectory: Trajectory, batch: LearningBatch, plan: BatchPlan
) -> LearningBatch:
    """Return a batch of an older policy with the present policy's log-probabilities for ratios, and its values."""
    logprobs, values = _recompute_logprobs(learner, batch, plan)
    reference = batch.reference
    if learner.has_critic:
        trajectory = with_values(trajectory, values.numpy(), learner.config.algorithm)
        batch = learning_batch(trajectory, algorithm, learner.ranks.sum, learner.config.env.action_delay)
    proximal = _unit_logprobs(learner, logprobs, batch.token_mask)
    return dataclasses.replace(batch, proximal_logprobs=proximal, reference=reference, is_old=True)


@torch.no_grad()
def _recompute_logprobs(
    learner: Learner, batch: LearningBatch, plan: BatchPlan, of_reference: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the present policy's log-probabilities of the tokens, float32 [M, K], and values, float32 [M].

    Both are 0 for unusable rows; values are 0 without a value head. of_reference: in place of log-probabilities,
    the statistic of a reference policy that the distributions' KL needs.
    """
    parts = np.array_split(batch.usable, max(1, plan.num_minibatches * plan.num_micro_batches))
    places = [padded(rows, learner.rows_of_pass(plan.num_rows)) for rows in parts]
    # on the device, so that no pass waits for the one before it
    results = []
    valued = []
    for at in places:
        (tokens,) = uploaded([batch.tokens[at]], learner.device)
        distribution, value = _forward(learner, batch, at, tokens)
        results.append(distribution.kl_statistic(tokens) if of_reference else distribution.logprobs(tokens))
        valued.append(torch.zeros(len(at), device=learner.device) if value is None else value)
    learner.sharded.reshard()
    logprobs = torch.zeros(batch.old_logprobs.shape)
    values = torch.zeros(len(batch.tokens))
    index = torch.from_numpy(np.concatenate(places))  # what pads a part is a row of it, with the same numbers
    logprobs[index] = torch.cat(results).float().cpu()
    values[index] = torch.cat(valued).float().cpu()
    return logprobs, values


def _batch_metrics(learner: Learner, batch: LearningBatch) -> dict[str, float]:
    """Return statistics of the training step's returns and advantages, over all ranks."""
    mask = batch.row_mask
    ranks = learner.ranks
    sums = MetricSums()
    raw = torch.where(mask, batch.raw_advantages, 0.0)
    means = {"advantage_mean": masked_mean(raw, mask), "advantage_abs": masked_mean(raw.abs(), mask)}
    if learner.has_critic:
        means |= {
            "return_mean": masked_mean(batch.returns, mask),
            "value_mean": masked_mean(batch.old_values, mask),
        }
    sums.add(means, mask.sum())
    metrics = sums.means(ranks)
    metrics["num_chunk_steps"] = float(ranks.sum(mask.sum().reshape(1).double())[0])
    if learner.has_critic:
        explained = explained_variance(batch.old_values, batch.returns, mask, ranks.sum)
        metrics["explained_variance"] = float(explained)
    return metrics


def _log(losses: Losses, targets: Targets, counts: dict[Reduction, float], sums: MetricSums) -> None:
    """Log losses and metrics. counts: the divisors of the losses' means; metrics divide by the masks' counts."""
    masks = {
        Reduction.units: targets.unit_mask,
        Reduction.tokens: targets.token_mask,
        Reduction.rows: targets.row_mask,
    }
    for term in losses.terms:
        if term.name is not None:
            sums.add({term.name: term.mean}, counts[term.over])
    for over, numbers in losses.metrics.items():
        sums.add(numbers, masks[over].sum())


def off_policy_update(learner: Learner, algorithm: OffPolicyAlgorithm, trajectory: Trajectory) -> dict[str, float]:
    """Let the algorithm learn after a training step. Returns metrics over all ranks."""
    ranks = learner.ranks
    sums = MetricSums()
    learner.sharded.begin_backward(is_last=True)

    def step(loss: Tensor) -> bool:
        loss.backward()
        norm, is_finite = learner.optimizer.step(ranks)
        sums.add({"grad_norm": norm}, float(is_finite))
        learner.telemetry.count("optimizer_steps")
        return is_finite

    entropy = (learner.config.seed, learner.num_updates, ranks.rank)
    random = torch.Generator().manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
    context = UpdateContext(
        learner.policy, learner.device, learner.num_updates, random, ranks.world_size, step, ranks.sum, ranks.any
    )
    metrics = algorithm.update(chunk_steps(trajectory, algorithm.config), trajectory, context)
    learner.sharded.reshard()
    learner.telemetry.count("learned_chunk_steps", int(trajectory.valid.sum()))
    return sums.means(ranks) | {"lr": learner.optimizer.lr} | metrics
