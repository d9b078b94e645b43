"""One rank of the actor: a policy in training, and the algorithm that trains it."""

from __future__ import annotations

from rlrun.actor.off_policy import off_policy_update
from rlrun.actor.on_policy import OnPolicyUpdates
from rlrun.actor.trained_policy import TrainedPolicy
from rlrun.algorithms.algorithm import OffPolicyAlgorithm
from rlrun.data.messages import Trajectory


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
