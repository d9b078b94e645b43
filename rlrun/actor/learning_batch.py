"""Prepares a trajectory for the losses: advantages, returns and masks, one row per chunk step.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, N cameras, M = T*B flat rows,
K choices with a log-probability each, a multiple of C; tokens may have another shape, which only the policy reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from rlrun.actor.process_group import Ranks
from rlrun.algorithms.advantages import Reduce, chunk_rewards
from rlrun.algorithms.algorithm import Algorithm, ChunkSteps, Reduction, Targets
from rlrun.algorithms.losses import aggregation_counts, aggregation_weights, at_level
from rlrun.config.schema import AlgorithmConfig, RewardType
from rlrun.data.messages import Trajectory
from rlrun.policies.upload import uploaded


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """R rows of a `LearningBatch` on the device, of which the last ones may not count: see `padded`."""

    index: Tensor  # int64 [R], in the batch
    targets: Targets
    old_logprobs: Tensor  # float32 [R, K]
    unit_logprobs: Tensor | None  # float32 [R, U]; None if the policy that acted is the proximal one
    reference: Tensor | None  # float32 [R, K]; None without a reference policy


@dataclass(frozen=True, eq=False)
class LearningBatch:
    """M chunk steps of one rank, in host memory; `usable` lists the rows for learning.

    A unit has one probability ratio: a token, a control step or a whole chunk, as `algorithm.ratio_level` says.
    """

    images: np.ndarray  # uint8 [M, N, H, W, 3]
    proprio: np.ndarray  # float32 [M, P]
    instructions: tuple[str, ...]  # distinct sentences
    instruction_index: np.ndarray  # int16 [M]
    tokens: Tensor  # uint8 or float32 [M, ...]: the chosen actions
    old_logprobs: Tensor  # float32 [M, K], of the policy that acted
    unit_logprobs: Tensor  # float32 [M, U], the same by unit
    proximal_logprobs: Tensor  # float32 [M, U], of the policy in the ratios' denominators
    old_values: Tensor  # float32 [M]
    advantages: Tensor  # float32 [M]
    returns: Tensor  # float32 [M]
    raw_advantages: Tensor  # float32 [M], before normalisation
    row_mask: Tensor  # bool [M]
    token_mask: Tensor  # bool [M, K]; tokens of control steps that were not executed are False
    unit_mask: Tensor  # bool [M, U]
    counts: np.ndarray  # float64 [M, 3]: share of each row in the divisor of a mean, per `Reduction`
    is_old: bool = False  # the behaviour policy is older than the proximal one
    reference: Tensor | None = None  # float32 [M, K], the distribution's `statistic` of the first policy

    @property
    def usable(self) -> np.ndarray:
        """Return int [<= M]: the indices of usable rows."""
        return np.flatnonzero(self.row_mask.numpy())

    def sentences(self, rows: np.ndarray) -> tuple[str, ...]:
        """Return the instruction of each row."""
        if len(self.instructions) == 1:
            return self.instructions * len(rows)
        return tuple(map(self.instructions.__getitem__, self.instruction_index[rows].tolist()))

    def rows(self, rows: np.ndarray, num_counted: int, device: torch.device) -> MicroBatch:
        """Return the rows (int [R]) on the device, by one copy. Only the first `num_counted` count."""
        index = torch.from_numpy(rows)
        names = [*_TARGETS, "old_logprobs", *(["unit_logprobs"] if self.is_old else [])]
        names += ["reference"] if self.reference is not None else []
        selected = {name: getattr(self, name).index_select(0, index) for name in names}
        for name in _MASKS:
            selected[name][num_counted:] = False
        taken = [index, *selected.values()]
        sent, *columns = uploaded(taken, device)
        by_name = dict(zip(names, columns, strict=True))
        return MicroBatch(
            sent,
            Targets(*(by_name[name] for name in _TARGETS)),
            by_name["old_logprobs"],
            by_name.get("unit_logprobs"),
            by_name.get("reference"),
        )


_TARGETS = tuple(field.name for field in fields(Targets))
_MASKS = ("token_mask", "unit_mask", "row_mask")


def padded(rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Return rows (int [R]) and after them copies of the last one, up to `num_rows` and at least one.

    What is added must not count. FSDP needs every rank in every pass, also one without rows; that pads with row 0.
    """
    missing = max(1, num_rows) - len(rows)
    last = rows[-1:] if len(rows) else np.zeros(1, np.int64)
    return np.concatenate([rows, last.repeat(missing)]) if missing > 0 else rows


def learning_batch(trajectory: Trajectory, algorithm: Algorithm, reduce: Reduce) -> LearningBatch:
    """Return the batch of one rank's trajectory, with advantages, returns and masks.

    `reduce` sums a tensor over the ranks; every rank must call this.
    """
    config, steps = algorithm.config, chunk_steps(trajectory, algorithm.config)
    estimates = algorithm.advantages(steps, reduce)
    num_chunks = trajectory.step_valid.shape[-1]
    logprobs = torch.tensor(_flat(trajectory.logprobs))
    token_mask = torch.tensor(trajectory.step_valid) & estimates.mask.unsqueeze(-1)
    token_mask = token_mask.repeat_interleave(logprobs.shape[-1] // num_chunks, dim=-1).flatten(0, 1)
    unit_logprobs, unit_mask = at_level(logprobs, token_mask, config.ratio_level.value, num_chunks)
    row_mask = estimates.mask.flatten()
    counts = {
        Reduction.units: aggregation_counts(unit_mask, config.aggregation.value),
        Reduction.tokens: aggregation_counts(token_mask, config.aggregation.value),
        Reduction.rows: row_mask,
    }
    clipped = _clipped(estimates.advantages.flatten(), config.clip_advantages)
    weights = aggregation_weights(token_mask, config.aggregation.value)
    returns = torch.zeros_like(estimates.raw) if estimates.returns is None else estimates.returns
    return LearningBatch(
        images=_flat(trajectory.images),
        proprio=_flat(trajectory.proprio),
        instructions=trajectory.instructions,
        instruction_index=_flat(trajectory.instruction_index),
        tokens=torch.tensor(_flat(trajectory.tokens)),
        old_logprobs=logprobs,
        unit_logprobs=unit_logprobs,
        proximal_logprobs=unit_logprobs,
        old_values=steps.values.flatten(),
        advantages=algorithm.as_weighed(clipped, weights, reduce),
        returns=_clipped(returns.flatten(), config.clip_returns),
        raw_advantages=estimates.raw.flatten(),
        row_mask=row_mask,
        token_mask=token_mask,
        unit_mask=unit_mask,
        counts=torch.stack([counts[over] for over in Reduction], dim=-1).double().numpy(),
    )


def chunk_steps(trajectory: Trajectory, config: AlgorithmConfig) -> ChunkSteps:
    """Return the inputs of the advantages."""
    names = ("rewards", "step_valid", "values", "next_values", "terminated", "truncated", "valid", "group")
    # copies: arrays from the object store are read-only
    tensors = {name: torch.tensor(getattr(trajectory, name)) for name in names}
    is_by_step = config.reward_type is RewardType.action
    rewards, discount = chunk_rewards(tensors.pop("rewards"), tensors.pop("step_valid"), config.gamma, is_by_step)
    goes_on = torch.from_numpy(_goes_on(trajectory, config))
    return ChunkSteps(rewards=rewards, discount=discount, goes_on=goes_on, horizon=config.horizon, **tensors)


def revalued(trajectory: Trajectory, values_M: np.ndarray, config: AlgorithmConfig) -> Trajectory:
    """Return the trajectory with another critic's values of its chunk steps, float32 [M].

    The values after a rollout epoch's last chunk step and after an episode's end stay, since their frames are not in
    the trajectory.
    """
    values = values_M.reshape(trajectory.valid.shape)
    following = np.concatenate([values[1:], values[:1]])
    return replace(
        trajectory, values=values, next_values=np.where(_goes_on(trajectory, config), following, trajectory.next_values)
    )


def _goes_on(trajectory: Trajectory, config: AlgorithmConfig) -> np.ndarray:
    """Return bool [T, B]: the next chunk step is valid and of the same episode."""
    goes_on = trajectory.valid & ~(trajectory.terminated | trajectory.truncated)
    goes_on[:-1] &= trajectory.valid[1:]
    goes_on[-1] = False
    if not config.carry_episodes:  # every rollout epoch resets all rows
        goes_on[config.horizon - 1 :: config.horizon] = False
    return goes_on


def _clipped(numbers: Tensor, bound: float | None) -> Tensor:
    return numbers if bound is None else numbers.clamp(-bound, bound)


def _flat(array_TB: np.ndarray) -> np.ndarray:
    return array_TB.reshape(array_TB.shape[0] * array_TB.shape[1], *array_TB.shape[2:])


@dataclass(frozen=True)
class BatchPlan:
    """The numbers of optimizer steps per epoch and forward passes per step, equal on all ranks.

    Example: 2 ranks with 100 and 96 usable rows, global batch 64, micro-batch 16: 4 optimizer steps of
    25 or 24 rows per rank, each in 2 forward passes of at most 13.
    """

    num_minibatches: int
    num_micro_batches: int
    num_rows: int  # of the largest forward pass of any rank

    @classmethod
    def for_rows(cls, num_rows: int, ranks: Ranks, global_batch_size: int, micro_batch_size: int) -> BatchPlan:
        """Plan for `num_rows` usable rows on this rank; all ranks call it. Ranks with fewer rows take every step."""
        counts = ranks.gather(num_rows)
        num_minibatches = math.ceil(sum(counts) / global_batch_size)
        largest = math.ceil(max(counts) / max(1, num_minibatches))
        num_micro_batches = max(1, math.ceil(largest / micro_batch_size))
        return cls(num_minibatches, num_micro_batches, math.ceil(largest / num_micro_batches))

    def epoch(self, rows: np.ndarray, generator: np.random.Generator) -> list[list[np.ndarray]]:
        """Return the minibatches of one epoch: a new permutation of `rows` in nearly equal parts, each divided into
        nearly equal micro-batches. Empty if no rank has a usable row."""
        if self.num_minibatches == 0:
            return []
        return [self.split(part) for part in np.array_split(generator.permutation(rows), self.num_minibatches)]

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the micro-batches of one minibatch; some are empty if this rank has fewer rows than others."""
        return np.array_split(rows, self.num_micro_batches)
