"""One step of imitation: cross-entropy of the demonstrated action bins.

Shape legend: M chunk steps, N cameras, P proprioception, C control steps per chunk, A action dimensions,
K = C*A tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlrun.actor.metric_sums import MetricSums
from rlrun.actor.minibatches import BatchPlan
from rlrun.algorithms.losses import imitation_loss

if TYPE_CHECKING:
    from rlrun.actor.learner import Learner


@dataclass(frozen=True, eq=False)
class DemonstrationBatch:
    """demonstrations -> actor: what the expert saw and did, one rank's share.

    Example: 32 rows, one 64 px camera, C=4, A=8: images (32, 1, 64, 64, 3), actions (32, 4, 8).
    """

    images: np.ndarray  # uint8 [M, N, H, W, 3]
    proprio: np.ndarray  # float32 [M, P], SI units
    instructions: tuple[str, ...]  # M sentences
    actions: np.ndarray  # float32 [M, C, A], simulator units
    step_valid: np.ndarray | None = None  # bool [M, C]; False: beyond the end of the episode; None: all count

    def __len__(self) -> int:
        return len(self.instructions)


def imitation_step(learner: Learner, batch: DemonstrationBatch) -> dict[str, float]:
    """One optimizer step; ranks may hold unequal shares. Metrics are means over all ranks' tokens."""
    micro_batch_size = learner.config.actor.micro_batch_size
    tokens = torch.as_tensor(learner.policy.encode_actions(batch.actions)).flatten(1)
    valid = np.ones(batch.actions.shape[:2], bool) if batch.step_valid is None else batch.step_valid
    mask = torch.from_numpy(valid).repeat_interleave(batch.actions.shape[-1], dim=-1)
    num_tokens = learner.ranks.sum(mask.sum().reshape(1).double()).clamp(min=1)
    # one minibatch: the global batch is whatever the ranks hold together
    plan = BatchPlan.of(len(batch), learner.ranks, max(1, int(num_tokens)), micro_batch_size)
    micro_batches = plan.split(np.arange(len(batch)))
    sums = MetricSums()
    for i, rows in enumerate(micro_batches):
        learner.sharded.begin_backward(is_last=i == len(micro_batches) - 1)
        loss = _micro_loss(learner, batch, rows, tokens, mask, sums)
        (loss * float(learner.ranks.world_size / num_tokens)).backward()
    norm, is_finite = learner.imitation_optimizer.step(learner.ranks)
    sums.add({"grad_norm": norm}, float(is_finite))
    return {
        **sums.means(learner.ranks),
        "num_nonfinite": float(not is_finite),
        "lr": learner.imitation_optimizer.lr,
    }


def _micro_loss(
    learner: Learner, batch: DemonstrationBatch, rows: np.ndarray, tokens: Tensor, mask: Tensor, sums: MetricSums
) -> Tensor:
    """Sum of the cross-entropy over the micro-batch's tokens; a rank without rows computes one masked row."""
    at = rows if len(rows) else np.zeros(1, np.int64)
    mask = (mask[at] & (len(rows) > 0)).to(learner.device)
    distribution, _ = learner.forward(batch.images[at], [batch.instructions[i] for i in at], batch.proprio[at])
    smoothing = learner.config.sft.label_smoothing_bins
    loss, metrics = imitation_loss(distribution.logits, tokens[at].to(learner.device), mask, smoothing)
    sums.add({"imitation_loss": loss, **metrics}, mask.sum())
    return loss * mask.sum()
