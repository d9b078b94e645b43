"""Prepares a trajectory for the losses: advantages, returns and masks, one row per chunk step.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, N cameras, M = T*B flat rows,
K choices with a log-probability each, a multiple of C; tokens may have another shape, which only the policy reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from rlrun.actor.process_group import Ranks
from rlrun.algorithms.advantages import Reduce, chunk_rewards
from rlrun.algorithms.algorithm import Algorithm, ChunkSteps, Reduction, Targets
from rlrun.algorithms.losses import aggregate_logprobs, aggregation_counts, aggregation_weights
from rlrun.algorithms.spec import rollout_rule
from rlrun.config.schema import AlgorithmConfig, RewardType
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.upload import uploaded

_TARGETS = tuple(field.name for field in fields(Targets))
_MASKS = ("token_mask", "unit_mask", "row_mask")


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
    episode: np.ndarray  # int64 [M]; rows of one episode have one number
    episode_units: Tensor  # float32 [M], valid units of the whole episode of each row
    episode_tokens: Tensor  # float32 [M], valid tokens of the same
    counts: np.ndarray  # float64 [M, 3]: share of each row in the divisor of a mean, per `Reduction`
    is_old: bool = False  # the behaviour policy is older than the proximal one
    reference: Tensor | None = None  # float32 [M, K], the distribution's `kl_statistic` of the first policy

    @property
    def usable(self) -> np.ndarray:
        """Return int [<= M]: the indices of usable rows."""
        return np.flatnonzero(self.row_mask.numpy())

    @property
    def usable_episode(self) -> np.ndarray:
        """Return int [<= M]: the episode of each usable row."""
        return self.episode[self.usable]

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


def padded(rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Return rows (int [R]) and after them copies of the last one, up to `num_rows` and at least one.

    What is added must not count. FSDP needs every rank in every pass, also one without rows; that pads with row 0.
    """
    missing = max(1, num_rows) - len(rows)
    last = rows[-1:] if len(rows) else np.zeros(1, np.int64)
    return np.concatenate([rows, last.repeat(missing)]) if missing > 0 else rows


def learning_batch(trajectory: Trajectory, algorithm: Algorithm, reduce: Reduce, delay: int = 0) -> LearningBatch:
    """Return the batch of one rank's trajectory, with advantages, returns and masks.

    `reduce` sums a tensor over the ranks; every rank must call this. delay: `env.action_delay`.
    """
    config = algorithm.config
    steps = chunk_steps(trajectory, algorithm.config)
    estimates = algorithm.advantages(steps, reduce)
    num_chunks = trajectory.step_valid.shape[-1]
    logprobs = torch.tensor(_flat(trajectory.logprobs))
    token_mask = torch.tensor(executed_actions(trajectory, config, delay)) & estimates.mask.unsqueeze(-1)
    token_mask = token_mask.repeat_interleave(logprobs.shape[-1] // num_chunks, dim=-1).flatten(0, 1)
    unit_logprobs, unit_mask = aggregate_logprobs(logprobs, token_mask, config.ratio_level.value, num_chunks)
    row_mask = estimates.mask.flatten()
    episode = episodes_of(trajectory, config)
    episode_units, episode_tokens = (_episode_sizes(mask, episode) for mask in (unit_mask, token_mask))
    counts = {
        Reduction.units: aggregation_counts(unit_mask, config.aggregation.value, episode_units),
        Reduction.tokens: aggregation_counts(token_mask, config.aggregation.value, episode_tokens),
        Reduction.rows: row_mask,
    }
    clipped = _clipped(estimates.advantages.flatten(), config.clip_advantages)
    weights = aggregation_weights(token_mask, config.aggregation.value, episode_tokens)
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
        episode=episode,
        episode_units=episode_units.float(),
        episode_tokens=episode_tokens.float(),
        counts=torch.stack([counts[over].double() for over in Reduction], dim=-1).numpy(),
    )


def executed_actions(trajectory: Trajectory, config: AlgorithmConfig, delay: int) -> np.ndarray:
    """Return bool [T, B, C]: which actions of each chunk were executed.

    With a delay the last `delay` actions of a chunk are executed in the first control steps of the next chunk step, and
    its first ones after those of the chunk before; the first chunk of an episode is executed at once
    (rlrun/workers/late_actions.py). What a training step does not see executed does not count.
    """
    valid = trajectory.step_valid
    if delay == 0:
        return valid
    at_once = valid.shape[-1] - delay
    goes_on = _goes_on(trajectory, config)
    is_first = np.ones(goes_on.shape, bool)
    is_first[1:] = ~goes_on[:-1]
    if config.carry_episodes:  # a carried episode is known by its control steps beyond those of a first chunk
        is_first[0] = ~valid[0, :, at_once:].any(-1)
    executed = np.zeros_like(valid)
    executed[..., :at_once] = np.where(is_first[..., None], valid[..., :at_once], valid[..., delay:])
    executed[:-1, :, at_once:] = valid[1:, :, :delay] & goes_on[:-1, :, None]
    return executed


def episodes_of(trajectory: Trajectory, config: AlgorithmConfig) -> np.ndarray:
    """Return int64 [M]: the number of the episode of each chunk step, on this rank.

    Where the algorithm takes one episode of a row and rollout epoch, these are the episodes. Else an episode goes up to
    its end, and what a training step holds of a carried one is an episode.
    """
    num_steps, num_rows = trajectory.valid.shape
    if rollout_rule(config).one_episode:
        of_row = np.arange(num_steps)[:, None] // config.horizon
    else:
        begins = np.ones((num_steps, num_rows), np.int64)
        begins[1:] = ~_goes_on(trajectory, config)[:-1]
        of_row = begins.cumsum(0)
    return (of_row * num_rows + np.arange(num_rows)).ravel()


def _episode_sizes(mask: Tensor, episode: np.ndarray) -> Tensor:
    """Return float64 [M]: the valid entries (mask: bool [M, ...]) of the whole episode of each row."""
    return torch.from_numpy(np.bincount(episode, mask.sum(-1).numpy())[episode])


def chunk_steps(trajectory: Trajectory, config: AlgorithmConfig) -> ChunkSteps:
    """Return the inputs of the advantages."""
    names = ("rewards", "step_valid", "values", "next_values", "terminated", "truncated", "valid", "group")
    # copies: arrays from the object store are read-only
    tensors = {name: torch.tensor(getattr(trajectory, name)) for name in names}
    is_by_step = config.reward_type is RewardType.action
    rewards, discount = chunk_rewards(tensors.pop("rewards"), tensors.pop("step_valid"), config.gamma, is_by_step)
    goes_on = torch.from_numpy(_goes_on(trajectory, config))
    return ChunkSteps(rewards=rewards, discount=discount, goes_on=goes_on, horizon=config.horizon, **tensors)


def with_values(trajectory: Trajectory, values_M: np.ndarray, config: AlgorithmConfig) -> Trajectory:
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
    def for_rows(
        cls,
        num_rows: int,
        ranks: Ranks,
        global_batch_size: int,
        micro_batch_size: int,
        num_collected: int | None = None,
    ) -> BatchPlan:
        """Plan for `num_rows` usable rows on this rank; all ranks call it. Ranks with fewer rows take every step.

        num_collected: rows of all ranks that fill the minibatches, usable or not; None: the usable ones.
        """
        counts = ranks.gather(num_rows)
        num_filling = sum(counts) if num_collected is None else num_collected
        num_minibatches = min(math.ceil(num_filling / global_batch_size), max(counts))  # none is empty on all ranks
        largest = math.ceil(max(counts) / max(1, num_minibatches))
        return cls._in_passes(num_minibatches, largest, micro_batch_size)

    @classmethod
    def for_episodes(
        cls,
        episode: np.ndarray,
        ranks: Ranks,
        num_together: int,
        micro_batch_size: int,
        generators: Iterable[np.random.Generator],
    ) -> BatchPlan:
        """Plan for minibatches of `num_together` whole episodes over all ranks; all ranks call it.

        episode: int [R], of this rank's usable rows. generators: those with which the epochs will be drawn, since the
        largest minibatch is known by its episodes only.
        """
        counts = ranks.gather(len(np.unique(episode)))
        num_minibatches = min(math.ceil(sum(counts) / num_together), max(counts))  # none is empty on all ranks
        undivided = cls(num_minibatches, 1, 0)
        rows = np.arange(len(episode))
        epochs = [undivided.epoch(rows, generator, episode) for generator in generators]
        largest = max((len(part) for epoch in epochs for (part,) in epoch), default=0)
        return cls._in_passes(num_minibatches, max(ranks.gather(largest)), micro_batch_size)

    @classmethod
    def _in_passes(cls, num_minibatches: int, largest: int, micro_batch_size: int) -> BatchPlan:
        """Return the plan for at most `largest` rows of a rank in a minibatch."""
        num_micro_batches = max(1, math.ceil(largest / micro_batch_size))
        return cls(num_minibatches, num_micro_batches, math.ceil(largest / num_micro_batches))

    def epoch(
        self, rows: np.ndarray, generator: np.random.Generator, episode: np.ndarray | None = None
    ) -> list[list[np.ndarray]]:
        """Return the minibatches of one epoch: a new permutation of `rows` in nearly equal parts, each divided into
        nearly equal micro-batches. Empty if no rank has a usable row.

        episode: int [R], of each row, to permute whole episodes in place of rows: parts have nearly equally many.
        """
        if self.num_minibatches == 0:
            return []
        drawn = generator.permutation(rows if episode is None else np.unique(episode))
        parts = np.array_split(drawn, self.num_minibatches)
        if episode is not None:
            parts = [rows[np.isin(episode, part)] for part in parts]
        return [self.split(part) for part in parts]

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the micro-batches of one minibatch; some are empty if this rank has fewer rows than others."""
        return np.array_split(rows, self.num_micro_batches)
