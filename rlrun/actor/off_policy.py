"""The updates of off-policy algorithms, which take as many optimizer steps as they like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlrun.actor.learning_batch import chunk_steps
from rlrun.actor.metric_sums import MetricSums
from rlrun.algorithms.algorithm import OffPolicyAlgorithm
from rlrun.data.messages import Trajectory

if TYPE_CHECKING:
    from rlrun.actor.trained_policy import TrainedPolicy


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
