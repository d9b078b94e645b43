"""Recorder of the messages that a worker sends and receives in the recorded training steps, and results of a replay."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlrun.config.schema import RunConfig
from rlrun.data.recording import RECORDING_FOLDER, Recording, write_json, write_message
from rlrun.edges.actions import ActionChunk
from rlrun.edges.observations import Observation
from rlrun.edges.weights import WeightBucket
from rlrun.system.telemetry import Telemetry

logger = logging.getLogger(__name__)

Episodes = Generator[Observation, ActionChunk, tuple]
_MAX_LINES = 20  # differences in a result; further ones are only counted


class Recorder:
    """Records messages and passes them on unchanged; one per env worker and one for actor rank 0.

    A message is on disk before it is passed on, so that a message that crashes a worker can be replayed. Recording
    stops with a line in the worker's log if the worker's share of `record.max_bytes` is used up or the disk is full;
    the run goes on.
    """

    def __init__(self, config: RunConfig, telemetry: Telemetry):
        settings = config.record
        self._steps = range(settings.first_step, settings.first_step + settings.num_steps)
        self._edges = set(settings.edges)
        self._share = settings.max_bytes // (config.env.num_workers + 1)
        self._telemetry = telemetry
        self._recording = Recording(Path(config.output_dir or ".") / RECORDING_FOLDER)
        self._used = 0
        self._is_stopped = False

    def interaction(self, step: int, episodes: Episodes, ranks: range) -> Episodes:
        """Return the same generator, recorded: observations, actions, and finally the trajectories for `ranks`."""
        return self._recorded(step, episodes, ranks) if self._is_wanted(step) else episodes

    def _recorded(self, step: int, episodes: Episodes, ranks: range) -> Episodes:
        self._delete(step)  # left by an earlier process of this worker
        number = 0
        answer = None
        while True:
            try:
                observation = next(episodes) if answer is None else episodes.send(answer)
            except StopIteration as finished:
                parts = finished.value
                break
            self._keep(step, "observation", number, observation)
            answer = yield observation
            self._keep(step, "actions", number, answer)
            number += 1
        for rank, shard in zip(ranks, parts[1:], strict=True):
            self._keep(step, "trajectory", rank, shard)
        self._keep_json(step, self._recording.end(step, self._telemetry.worker), {"num_answers": number})
        return parts

    def weights(self, step: int, buckets: Iterator[WeightBucket]) -> Iterator[WeightBucket]:
        """Return the same buckets, recorded: the weights after `step`."""
        return self._recorded_weights(step, buckets) if self._is_wanted(step) else buckets

    def _recorded_weights(self, step: int, buckets: Iterator[WeightBucket]) -> Iterator[WeightBucket]:
        for bucket in buckets:
            self._keep(step, "weights", bucket.index, replace(bucket, payload=bucket.on_host()))
            yield bucket

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of an update."""
        if self._is_wanted(step):
            self._keep_json(step, self._recording.update(step), metrics)

    def _is_wanted(self, step: int) -> bool:
        return step in self._steps and not self._is_stopped

    def _keep(self, step: int, edge: str, number: int, message: Any) -> None:
        if self._is_stopped or edge not in self._edges:
            return
        path = self._recording.message(step, self._telemetry.worker, edge, number)
        try:
            num_bytes = write_message(path, message)
        except OSError as error:
            self._stop(step, f"{path} cannot be written: {error}")
            return
        self._used += num_bytes
        self._telemetry.count("recorded_bytes", num_bytes)
        if self._used > self._share:
            self._stop(step, f"this worker's share of record.max_bytes, {self._share} bytes, is used up")

    def _keep_json(self, step: int, path: Path, content: dict[str, Any]) -> None:
        if self._is_stopped:
            return
        try:
            write_json(path, content)
        except OSError as error:
            self._stop(step, f"{path} cannot be written: {error}")

    def _stop(self, step: int, why: str) -> None:
        self._is_stopped = True
        self._delete(step)
        logger.warning("recording ends before step %d: %s", step, why)

    def _delete(self, step: int) -> None:
        shutil.rmtree(self._recording.worker_folder(step, self._telemetry.worker), ignore_errors=True)


@dataclass(frozen=True)
class ReplayedStep:
    """worker -> driver: the result of a replayed step.

    Example: ReplayedStep("env/0", 17, True, ("answer 5: frames.images: 12 of 24576 differ, …",), 9)
    """

    worker: str
    num_compared: int  # messages
    is_complete: bool  # False: the recording, and therefore the replay, ends within the step
    lines: tuple[str, ...]  # the first differences, in order of occurrence
    num_differences: int

    @classmethod
    def from_lines(cls, worker: str, num_compared: int, is_complete: bool, lines: list[str]) -> ReplayedStep:
        """Return the result with the first of its differences."""
        return cls(worker, num_compared, is_complete, tuple(lines[:_MAX_LINES]), len(lines))
