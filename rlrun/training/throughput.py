"""How much of the accelerators' peak a training step uses: MFU of acting and updating, and speeds per accelerator."""

from __future__ import annotations

from collections.abc import Mapping

from rlrun.config.registry import ALGORITHMS
from rlrun.placement.plan import ROLES, Plan
from rlrun.placement.step_time import device_of, has_known_devices
from rlrun.placement.workload import Workload


class Throughput:
    """The metrics `perf/…` of a run. Without accelerators of known peak there are none.

    Example::

        throughput = Throughput(fitting.work, fitting.plan)
        metrics |= throughput.of_step(metrics)
    """

    def __init__(self, work: Workload, plan: Plan):
        self._config = work.config
        self._counts = work.counts if has_known_devices(plan) else None
        self._peaks = {role: _peak(plan, role) for role in ("actor", "rollout")}
        self._num_accelerators = len(plan.cards_of(*ROLES))

    def of_step(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of a training step.

        metrics: those of the step: step_s, update_s, busy_rollout, num_chunk_steps and env_steps_per_second.
        """
        counts = self._counts
        if counts is None:
            return {}
        rows = metrics["num_chunk_steps"]
        values = {
            "chunk_steps_per_accelerator": rows / _at_least(metrics["step_s"]) / self._num_accelerators,
            "env_steps_per_accelerator": metrics["env_steps_per_second"] / self._num_accelerators,
        }
        if ALGORITHMS.get(self._config.algorithm.name).is_on_policy:  # others learn by passes that are not counted
            learned = rows * self._config.algorithm.update_epochs
            values["mfu_update"] = learned * counts.update.flops / _at_least(metrics["update_s"]) / self._peaks["actor"]
        tokens = max((stack.num_tokens for stack in counts.stacks), default=0)
        values["tokens_per_accelerator"] = values["chunk_steps_per_accelerator"] * tokens
        if "busy_rollout" in metrics:
            acting_s = metrics["busy_rollout"] * metrics["step_s"]
            values["mfu_act"] = rows * counts.act.flops / _at_least(acting_s) / self._peaks["rollout"]
        return values


def _peak(plan: Plan, role: str) -> float:
    """Return the operations per second of all workers of a role, each on one accelerator."""
    devices = (device_of(slot.accelerator_model) for slot in plan.of(role))
    return sum(device.flops for device in devices if device is not None)


def _at_least(seconds: float) -> float:
    return max(1e-9, seconds)
