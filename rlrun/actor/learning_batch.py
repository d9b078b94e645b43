"""From a trajectory to what the losses take: advantages, returns and masks, one row per chunk step.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, A action dimensions,
K = C*A tokens, N cameras, M = T*B flat rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.advantages import (
    Reduce,
    chunk_rewards,
    first_episodes,
    gae,
    group_advantages,
    normalize,
)
from rlrun.algorithms.losses import aggregation_counts, at_level
from rlrun.config.schema import Algorithm, AlgorithmConfig, RewardType
from rlrun.data.messages import Trajectory


@dataclass(frozen=True, eq=False)
class LearningRows:
    """What the losses compare a forward pass with, R rows of a `LearningBatch`, where the pass was computed."""

    tokens: Tensor  # uint8 or float32 [R, K]
    token_mask: Tensor  # bool [R, K]
    unit_mask: Tensor  # bool [R, U]
    proximal_logprobs: Tensor  # float32 [R, U]
    advantages: Tensor  # float32 [R]
    old_values: Tensor  # float32 [R]
    returns: Tensor  # float32 [R]
    row_mask: Tensor  # bool [R]

    def masked(self) -> LearningRows:
        """The same rows, none of which counts."""
        masks = {name: torch.zeros_like(getattr(self, name)) for name in ("token_mask", "unit_mask", "row_mask")}
        return replace(self, **masks)


@dataclass(frozen=True, eq=False)
class LearningBatch:
    """M chunk steps of one rank, in host memory; `usable` lists the rows that may be learned from.

    A unit is what gets one ratio: a token, a control step or a whole chunk, as `algorithm.ratio_level` says.
    """

    images: np.ndarray  # uint8 [M, N, H, W, 3]
    proprio: np.ndarray  # float32 [M, P]
    instructions: tuple[str, ...]  # distinct sentences
    instruction_index: np.ndarray  # int16 [M]
    tokens: Tensor  # uint8 or float32 [M, K]
    old_logprobs: Tensor  # float32 [M, K], of the policy that acted
    unit_logprobs: Tensor  # float32 [M, U], the same by unit
    proximal_logprobs: Tensor  # float32 [M, U], of the policy that ratios are taken against
    old_values: Tensor  # float32 [M]
    advantages: Tensor  # float32 [M]
    returns: Tensor  # float32 [M]
    raw_advantages: Tensor  # float32 [M], before normalisation
    row_mask: Tensor  # bool [M]
    token_mask: Tensor  # bool [M, K]; tokens of control steps that were not executed are False
    unit_mask: Tensor  # bool [M, U]
    counts: np.ndarray  # float64 [M, 3]: how much each row adds to what means of units, of tokens and of rows divide by
    is_old: bool = False  # the policy that acted is not the one that ratios are taken against

    @property
    def usable(self) -> np.ndarray:
        """int [<= M]: indices of usable rows."""
        return np.flatnonzero(self.row_mask.numpy())

    def sentences(self, rows: np.ndarray) -> tuple[str, ...]:
        """The instruction of each row."""
        if len(self.instructions) == 1:
            return self.instructions * len(rows)
        return tuple(map(self.instructions.__getitem__, self.instruction_index[rows].tolist()))

    def rows(self, rows: np.ndarray, device: torch.device) -> LearningRows:
        """Those that `rows` (int [R]) lists, on the device; without any, one that does not count: FSDP needs every
        rank in every pass."""
        index = torch.from_numpy(rows) if len(rows) else torch.zeros(1, dtype=torch.int64)
        names = (field.name for field in fields(LearningRows))
        taken = LearningRows(*(getattr(self, name).index_select(0, index).to(device) for name in names))
        return taken if len(rows) else taken.masked()


def learning_batch(trajectory: Trajectory, config: AlgorithmConfig, reduce: Reduce) -> LearningBatch:
    """Advantages (normalised over all ranks), returns and masks of one rank's trajectory.

    `reduce` sums a tensor over the ranks; every rank must call this.
    """
    tensors = {
        name: torch.tensor(getattr(trajectory, name))  # a copy: arrays from the object store are read-only
        for name in ("rewards", "step_valid", "values", "next_values", "terminated", "truncated", "valid", "group")
    }
    rewards, discount = chunk_rewards(
        tensors["rewards"], tensors["step_valid"], config.gamma, config.reward_type is RewardType.action
    )
    if config.name is Algorithm.grpo:
        raw, mask = _grpo(tensors, rewards, config.horizon)
        advantages, returns = raw, torch.zeros_like(raw)
    else:
        goes_on = torch.from_numpy(_goes_on(trajectory, config))
        raw, returns, mask = _ppo(tensors, rewards, discount, goes_on, config.gae_lambda)
        advantages = normalize(raw, mask, reduce) if config.normalize_advantages else torch.where(mask, raw, 0.0)
    num_chunks = trajectory.step_valid.shape[-1]
    logprobs = torch.tensor(_flat(trajectory.logprobs))
    token_mask = tensors["step_valid"] & mask.unsqueeze(-1)
    token_mask = token_mask.repeat_interleave(trajectory.tokens.shape[-1] // num_chunks, dim=-1).flatten(0, 1)
    unit_logprobs, unit_mask = at_level(logprobs, token_mask, config.ratio_level.value, num_chunks)
    counts = [aggregation_counts(part, config.aggregation.value) for part in (unit_mask, token_mask)]
    return LearningBatch(
        images=_flat(trajectory.images),
        proprio=_flat(trajectory.proprio),
        instructions=trajectory.instructions,
        instruction_index=_flat(trajectory.instruction_index),
        tokens=torch.tensor(_flat(trajectory.tokens)),
        old_logprobs=logprobs,
        unit_logprobs=unit_logprobs,
        proximal_logprobs=unit_logprobs,
        old_values=tensors["values"].flatten(),
        advantages=advantages.flatten(),
        returns=returns.flatten(),
        raw_advantages=raw.flatten(),
        row_mask=mask.flatten(),
        token_mask=token_mask,
        unit_mask=unit_mask,
        counts=torch.stack([*counts, mask.flatten()], dim=-1).double().numpy(),
    )


def revalued(trajectory: Trajectory, values_M: np.ndarray, config: AlgorithmConfig) -> Trajectory:
    """The same with another critic's values of its chunk steps, float32 [M].

    Of observations behind a rollout epoch's last chunk step and behind an episode's end there is no frame: their
    values stay.
    """
    values = values_M.reshape(trajectory.valid.shape)
    following = np.concatenate([values[1:], values[:1]])
    return replace(
        trajectory, values=values, next_values=np.where(_goes_on(trajectory, config), following, trajectory.next_values)
    )


def _goes_on(trajectory: Trajectory, config: AlgorithmConfig) -> np.ndarray:
    """bool [T, B]: the chunk step that follows is valid and of the same episode."""
    goes_on = trajectory.valid & ~(trajectory.terminated | trajectory.truncated)
    goes_on[:-1] &= trajectory.valid[1:]
    goes_on[-1] = False
    if not config.carry_episodes:  # every rollout epoch starts its episodes afresh
        goes_on[config.horizon - 1 :: config.horizon] = False
    return goes_on


def _flat(array_TB: np.ndarray) -> np.ndarray:
    return array_TB.reshape(array_TB.shape[0] * array_TB.shape[1], *array_TB.shape[2:])


def _ppo(
    tensors: dict[str, Tensor], rewards: Tensor, discount: Tensor, goes_on: Tensor, gae_lambda: float
) -> tuple[Tensor, Tensor, Tensor]:
    """goes_on: where the trace runs on; what a trace is cut off from is bootstrapped, unless it terminated."""
    advantages, returns = gae(
        rewards,
        tensors["values"],
        tensors["next_values"],
        tensors["terminated"],
        ~goes_on,
        discount,
        gae_lambda,
    )
    return advantages, returns, tensors["valid"]


def _grpo(tensors: dict[str, Tensor], rewards: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
    """In each rollout epoch, the first episode of each row is compared with those of its group: they share the reset
    seed."""
    by_epoch = zip(
        rewards.split(horizon),
        (tensors["terminated"] | tensors["truncated"]).split(horizon),
        tensors["valid"].split(horizon),
        strict=True,
    )
    advantages, masks = zip(*(_compared(*epoch, tensors["group"]) for epoch in by_epoch), strict=True)
    return torch.cat(advantages), torch.cat(masks)


def _compared(rewards: Tensor, ended: Tensor, valid: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    mask = first_episodes(ended, valid)
    scores = torch.where(mask, rewards, 0.0).sum(0)
    return torch.where(mask, group_advantages(scores, group, mask.any(0)), 0.0), mask
