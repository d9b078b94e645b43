"""Actor workers that record their updates, or learn again from recorded trajectories and compare the results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from rlrun.config.schema import RunConfig
from rlrun.data.message_files import read_message
from rlrun.data.recording import METRICS, Recording
from rlrun.edges.buckets import pack, unpack
from rlrun.edges.trajectories import Trajectory
from rlrun.edges.weights import WeightBucket
from rlrun.system.local_files import read_json
from rlrun.system.telemetry import Telemetry
from rlrun.workers.actor_worker import ActorWorker
from rlrun.workers.recorder import Recorder


class RecordedActorWorker(ActorWorker):
    """An actor rank of a run with `record.num_steps`; rank 0 records."""

    def __init__(self, config: RunConfig, rank: int, telemetry: Telemetry):
        super().__init__(config, rank, telemetry)
        self._recorder = Recorder(config, telemetry)

    def update(self, step: int, num_valid: Sequence[int] | None, *shards: Trajectory) -> dict[str, float]:
        metrics = super().update(step, num_valid, *shards)
        if step in self._recorder.steps:
            weights = weights_after(self, step)
            if self.rank == 0:
                self._recorder.update(step, metrics, weights)
            for _ in weights:  # of other ranks, which only gather
                pass
        return metrics


class ReplayedActorWorker(ActorWorker):
    """An actor rank of a run with `replay.path`."""

    def replay(self, folder: str, step: int) -> dict[str, list[str]]:
        """Learn from the trajectories of a step recorded in `folder`; all ranks call it.

        Returns of rank 0 the differences of "metrics" and "weights", as far as they were recorded; {} of others.
        """
        recording = Recording(Path(folder))
        envs = range(self.config.env.num_workers)
        paths = [recording.message(step, f"env/{env}", "trajectory", self.rank) for env in envs]
        metrics = self.update(step, None, *(read_message(path, Trajectory) for path in paths if path.exists()))
        weights = weights_after(self, step)
        found: dict[str, list[str]] = {}
        place = recording.worker_folder(step, "actor/0") / METRICS
        if self.rank == 0:
            if place.exists():
                found["metrics"] = metric_differences(read_json(place), metrics)
            if recorded := recording.messages(step, "actor/0", "weights"):
                found["weights"] = weight_differences((read_message(path, WeightBucket) for path in recorded), weights)
        for _ in weights:  # all ranks gather, even if there is nothing to compare
            pass
        return found


def weights_after(worker: ActorWorker, step: int) -> Iterator[WeightBucket]:
    """Yield what trains, as it is after a step; on ranks other than 0 nothing. All ranks must exhaust it."""
    gathered = worker.learner.named_weights(has_base=True)
    if worker.rank == 0:
        yield from pack(gathered, worker.outgoing.layout(has_base=True), step + 1)
    for _ in gathered:
        pass


def metric_differences(was: dict[str, float], now: dict[str, float]) -> list[str]:
    """Return one line per metric that is not bitwise equal; NaN equals NaN."""
    return [
        f"{name}: {value!r} recorded, {now.get(name)!r} now"
        for name, value in was.items()
        if value != now.get(name) and not (math.isnan(value) and math.isnan(now.get(name, 0.0)))
    ]


def weight_differences(recorded: Iterator[WeightBucket], packed: Iterator[WeightBucket]) -> list[str]:
    """Return one line for all tensors that are not bitwise equal."""
    was = (tensor for bucket in recorded for tensor in unpack(bucket))
    now = (tensor for bucket in packed for tensor in unpack(bucket))
    gaps: dict[str, float] = {}
    num_tensors = 0
    for (name, before), (_, tensor) in zip(was, now, strict=True):
        num_tensors += 1
        if not torch.equal(before.flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)):
            gaps[name] = float((before.double() - tensor.double()).abs().max())
    gap, worst = max(((gap, name) for name, gap in gaps.items()), default=(0.0, ""))
    line = f"weights: {len(gaps)} of {num_tensors} tensors differ, most of all {worst}, by {gap:.3g}"
    return [line] if gaps else []
