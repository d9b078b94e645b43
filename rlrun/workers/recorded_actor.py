"""Actor workers that record their updates, or replay recorded ones without simulators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from rlrun.config.schema import RunConfig
from rlrun.data.recording import Recording, read_message
from rlrun.edges.buckets import pack, unpack
from rlrun.edges.trajectories import Trajectory
from rlrun.edges.weights import WeightBucket
from rlrun.system.local_files import read_json
from rlrun.system.telemetry import Telemetry
from rlrun.workers.actor_worker import ActorWorker
from rlrun.workers.recorder import Recorder, ReplayedStep


class RecordedActorWorker(ActorWorker):
    """Actor rank 0 of a run with `record.num_steps`."""

    def __init__(self, config: RunConfig, rank: int, telemetry: Telemetry):
        super().__init__(config, rank, telemetry)
        self._recorder = Recorder(config, telemetry)

    def update(self, step: int, num_valid: Sequence[int] | None, *shards: Trajectory) -> dict[str, float]:
        metrics = super().update(step, num_valid, *shards)
        self._recorder.update(step, metrics)
        return metrics

    def _packed(
        self, policy_version: int, has_base: bool, place: Callable[[int], np.ndarray | torch.Tensor] | None
    ) -> Iterator[WeightBucket]:
        return self._recorder.weights(policy_version - 1, super()._packed(policy_version, has_base, place))


class ReplayedActorWorker(ActorWorker):
    """An actor rank of a run with `replay.path`."""

    def replay(self, folder: str, step: int) -> ReplayedStep:
        """Learn from the trajectories of a step recorded in `folder`, without simulators; all ranks call it."""
        recording = Recording(Path(folder))
        metrics = self.update(step, None, *recorded_shards(recording, step, self.config, self.rank))
        has_base = _has_base(recording, step, {name for name, _ in self.learner.weight_layout(True)})
        gathered = self.learner.named_weights(has_base)
        lines: list[str] = []
        num_compared = 0
        if self.rank == 0:
            packed = pack(gathered, self.layout(has_base), step + 1)
            lines, num_compared = update_differences(recording, step, metrics, packed)
        for _ in gathered:  # all ranks gather, even if there is nothing to compare
            pass
        return ReplayedStep.from_lines(self.telemetry.worker, num_compared, True, lines)


def recorded_shards(recording: Recording, step: int, config: RunConfig, rank: int) -> list[Trajectory]:
    """Return the recorded shards that env workers sent to actor rank `rank`."""
    num_workers = config.env.num_workers
    paths = [recording.message(step, f"env/{worker}", "trajectory", rank) for worker in range(num_workers)]
    return [read_message(path, Trajectory) for path in paths if path.exists()]


def update_differences(
    recording: Recording, step: int, metrics: dict[str, float], packed: Iterator[WeightBucket]
) -> tuple[list[str], int]:
    """Return the differences of metrics and weights from the recorded ones, and how many of the two were recorded.

    packed: the weights after the step, in the order of sending.
    """
    lines = []
    num_compared = 0
    if recorded := _recorded_buckets(recording, step):
        lines += _weight_differences((read_message(path, WeightBucket) for path in recorded), packed)
        num_compared += 1
    if recording.update(step).exists():
        lines += _metric_differences(read_json(recording.update(step)), metrics)
        num_compared += 1
    return lines, num_compared


def _has_base(recording: Recording, step: int, names: set[str]) -> bool:
    """Return whether the recorded weights were sent to rollout workers with the base: then they have these names only.

    The base is sent once more after a rollout worker was lost.
    """
    buckets = (read_message(path, WeightBucket) for path in _recorded_buckets(recording, step))
    return all(where.name in names for bucket in buckets for where in bucket.slices)


def _recorded_buckets(recording: Recording, step: int) -> list[Path]:
    """Return the files of the buckets; none if the run ended while they were sent."""
    count = recording.count(step, "actor/0", "weights")
    paths = [recording.message(step, "actor/0", "weights", index) for index in range(count)]
    return paths if paths and read_message(paths[0], WeightBucket).num_buckets == count else []


def _metric_differences(was: dict[str, float], now: dict[str, float]) -> list[str]:
    """Return one line per metric that is not bitwise equal; NaN equals NaN."""
    return [
        f"{name}: {value!r} recorded, {now.get(name)!r} now"
        for name, value in was.items()
        if value != now.get(name) and not (math.isnan(value) and math.isnan(now.get(name, 0.0)))
    ]


def _weight_differences(recorded: Iterator[WeightBucket], packed: Iterator[WeightBucket]) -> list[str]:
    """Return one line for all tensors that are not bitwise equal."""
    was = (tensor for bucket in recorded for tensor in unpack(bucket))
    now = (tensor for bucket in packed for tensor in unpack(bucket))
    gaps: dict[str, float] = {}
    num_tensors = 0
    for (name, before), (_, tensor) in zip(was, now, strict=True):
        num_tensors += 1
        if not torch.equal(before.flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)):
            gaps[name] = float((before.double() - tensor.double()).abs().max())
    if not gaps:
        return []
    worst = max(gaps, key=lambda name: gaps[name])
    return [f"weights: {len(gaps)} of {num_tensors} tensors differ, most of all {worst}, by {gaps[worst]:.3g}"]
