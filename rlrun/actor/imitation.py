"""Imitation of demonstrations: optimizer steps with the loss of the policy, or its gradients beside another loss.

Shape legend: M chunk steps, N cameras, P proprioception, C control steps per chunk, A action dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlrun.actor.learning_batch import BatchPlan, padded
from rlrun.actor.update_metrics import MetricSums
from rlrun.observability.records import EXCHANGED_LOSSES, HELD_LOSS
from rlrun.policies.policy import ImitationPolicy
from rlrun.system.errors import ExitStatus, RunError

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner


LOSSES_OF_A_RANK = 2**24  # further than any run of a rank counts; draws are numbered below 2**32
NUM_ROWS = 64  # of the batch


@dataclass(frozen=True, eq=False)
class DemonstrationBatch:
    """demonstrations -> actor: observations and actions of the expert, one rank's share.

    Example: 32 rows, one 64 px camera, C=4, A=8: images (32, 1, 64, 64, 3), actions (32, 4, 8).
    """

    images: np.ndarray  # uint8 [M, N, H, W, 3]
    proprio: np.ndarray  # float32 [M, P], SI units
    instructions: tuple[str, ...]  # M sentences
    actions: np.ndarray  # float32 [M, C, A], simulator units
    step_valid: np.ndarray | None = None  # bool [M, C]; False: beyond the end of the episode; None: all count
    draw: int | None = None  # the number by which a loss draws; None: it goes on from the losses before

    def __len__(self) -> int:
        return len(self.instructions)


# Returns this rank's demonstrations for (training steps done, optimizer steps of this one). The same numbers give the
# same batch, so that a resumed run repeats itself.
DemonstrationSource = Callable[[int, int], DemonstrationBatch]


def imitate(learner: Learner, batches: Iterable[DemonstrationBatch]) -> dict[str, float]:
    """Take an optimizer step per batch. Returns the metrics of the last finite one; {} without batches.

    Their num_nonfinite is the number of steps whose gradients were not finite, and which changed nothing. Raises
    RunError, on all ranks, if no step was finite: the policy is then as it began.
    """
    _imitating(learner).num_losses += first_draw(learner.ranks.rank)
    metrics: dict[str, float] = {}
    num_steps = num_skipped = 0
    for batch in batches:
        step_metrics = imitation_step(learner, batch)
        num_steps += 1
        num_skipped += bool(step_metrics["num_nonfinite"])
        metrics = metrics if step_metrics["num_nonfinite"] else step_metrics
    if num_steps and not metrics:
        raise RunError(
            f"None of the {num_steps} optimizer steps of imitation had finite gradients.",
            key="sft.lr",
            value=learner.config.sft.lr,
            cause="the demonstrations hold numbers far out of the range of their statistics, or half precision is too "
            "coarse for them",
            remedy="look at min, max, q01 and q99 in the dataset's statistics, or take actor.param_precision=fp32",
            exit_status=ExitStatus.diverged,
        )
    return metrics | {"num_nonfinite": float(num_skipped)} if metrics else metrics


def imitation_step(learner: Learner, batch: DemonstrationBatch) -> dict[str, float]:
    """Take one optimizer step; the ranks' shares may differ in size. Metrics are means over all control steps."""
    learner.sharded.offloader.require_device("imitation")
    sums = MetricSums()
    add_imitation_gradients(learner, batch, 1.0, sums)
    learner.settle_kernels()
    norm, is_finite = learner.imitation_optimizer.step(learner.ranks)
    sums.add({"grad_norm": norm}, float(is_finite))
    learner.telemetry.count("imitation_steps")
    return {
        **sums.means(learner.ranks),
        "num_nonfinite": float(not is_finite),
        "lr": learner.imitation_optimizer.lr,
    }


def add_imitation_gradients(learner: Learner, batch: DemonstrationBatch, coef: float, sums: MetricSums) -> None:
    """Add the gradients of `coef` times the mean loss over all control steps of all ranks.

    They are the last ones of an optimizer step. All ranks call it; their shares may differ in size. The metrics of the
    loss go into `sums`.
    """
    if batch.draw is not None:
        _imitating(learner).num_losses = batch.draw + first_draw(learner.ranks.rank)
    valid = np.ones(batch.actions.shape[:2], bool) if batch.step_valid is None else batch.step_valid
    num_steps = float(learner.ranks.sum(torch.tensor([float(valid.sum())], dtype=torch.float64)).clamp(min=1))
    # one minibatch, since all ranks' rows together are the global batch
    plan = BatchPlan.for_rows(len(batch), learner.ranks, max(1, int(num_steps)), learner.config.actor.micro_batch_size)
    micro_batches = plan.split(np.arange(len(batch)))
    for i, rows in enumerate(micro_batches):
        learner.sharded.begin_backward(is_last=i == len(micro_batches) - 1)
        at = padded(rows, learner.rows_of_pass(plan.num_rows))
        counted = valid[at] & (np.arange(len(at)) < len(rows))[:, None]
        loss = _micro_loss(learner, batch, at, counted, sums)
        (loss * (coef * learner.ranks.world_size / num_steps)).backward()


def first_draw(rank: int) -> int:
    """Return the number of losses at which a rank begins, so that losses that draw by it draw apart on each rank."""
    return rank * LOSSES_OF_A_RANK


def num_demonstrated_steps(learner: Learner) -> int:
    """Return the control steps of a demonstrated chunk that the policy learns from."""
    return _imitating(learner).num_demonstrated_steps


def _imitating(learner: Learner) -> ImitationPolicy:
    assert isinstance(learner.policy, ImitationPolicy), f"{type(learner.policy).__name__} cannot imitate"
    return learner.policy


def _micro_loss(
    learner: Learner, batch: DemonstrationBatch, at: np.ndarray, counted: np.ndarray, sums: MetricSums
) -> Tensor:
    """Sum of the loss over the control steps (counted: bool [R, C]) of a micro-batch's rows."""
    policy = _imitating(learner)
    sentences = [batch.instructions[i] for i in at]
    loss, metrics = policy.imitation_loss(
        batch.images[at], sentences, batch.proprio[at], batch.actions[at], counted, learner.config.sft
    )
    sums.add({"imitation_loss": loss, **metrics}, float(counted.sum()))
    return loss * float(counted.sum())


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
    losses = {HELD_LOSS: _loss(learner, batch, batch.images, batch.instructions)}
    if batch.images.shape[1]:
        others = np.roll(batch.images, len(batch) // 2, axis=0)
        losses[EXCHANGED_LOSSES["pictures"]] = _loss(learner, batch, others, batch.instructions)
    if len(set(batch.instructions)) > 1:
        losses[EXCHANGED_LOSSES["instructions"]] = _loss(learner, batch, batch.images, _others(batch.instructions))
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
        loss, _ = policy.imitation_loss(
            images[at], list(instructions[at]), batch.proprio[at], batch.actions[at], valid[at], learner.config.sft
        )
        total += float(loss) * float(valid[at].sum())
    return total / max(1.0, float(valid.sum()))


def _others(instructions: Sequence[str]) -> tuple[str, ...]:
    """Return another sentence for every row: the next one of those that there are."""
    sentences = sorted(set(instructions))
    following = dict(zip(sentences, [*sentences[1:], sentences[0]], strict=True))
    return tuple(following[text] for text in instructions)
