"""Whether an imitated policy looks: how its loss grows when pictures or instructions are exchanged among rows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from rlrun.actor.imitation import DemonstrationBatch
from rlrun.observability.ablation import EXCHANGED, HELD
from rlrun.policies.policy import ImitationPolicy

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner

NUM_ROWS = 64  # of the batch


def ablation_rows(num_frames: int) -> np.ndarray:
    """Return the frames of the batch, int [M]: spread over all demonstrations."""
    return np.linspace(0, num_frames - 1, min(NUM_ROWS, num_frames)).astype(np.int64)


@torch.no_grad()
def exchanged_losses(learner: Learner, batch: DemonstrationBatch) -> dict[str, float]:
    """Return the imitation loss of a batch as it is, and with rows that get another row's picture or instruction.

    All ranks call it, with the same batch. There is no loss for pictures that a policy is not shown, nor for
    instructions if all rows have the same; {} for a single row.
    """
    if len(batch) < 2:
        return {}
    losses = {HELD: _loss(learner, batch, batch.images, batch.instructions)}
    if batch.images.shape[1]:
        others = np.roll(batch.images, len(batch) // 2, axis=0)
        losses[EXCHANGED["pictures"]] = _loss(learner, batch, others, batch.instructions)
    if len(set(batch.instructions)) > 1:
        losses[EXCHANGED["instructions"]] = _loss(learner, batch, batch.images, _others(batch.instructions))
    learner.sharded.reshard()
    return losses


def _loss(learner: Learner, batch: DemonstrationBatch, images: np.ndarray, instructions: Sequence[str]) -> float:
    """Return the mean loss over the valid control steps, with the same draws at every call."""
    policy = copy.copy(learner.policy)  # a loss may draw by the number of losses before it, which the copy counts apart
    assert isinstance(policy, ImitationPolicy)
    valid = np.ones(batch.actions.shape[:2], bool) if batch.step_valid is None else batch.step_valid
    total = 0.0
    size = max(1, learner.config.actor.micro_batch_size)
    for start in range(0, len(batch), size):
        at = slice(start, start + size)
        found, _ = policy.imitation_loss(
            images[at], list(instructions[at]), batch.proprio[at], batch.actions[at], valid[at], learner.config.sft
        )
        total += float(found) * float(valid[at].sum())
    return total / max(1.0, float(valid.sum()))


def _others(instructions: Sequence[str]) -> tuple[str, ...]:
    """Return another sentence for every row: the next one of those that there are."""
    sentences = sorted(set(instructions))
    following = dict(zip(sentences, [*sentences[1:], sentences[0]], strict=True))
    return tuple(following[text] for text in instructions)
