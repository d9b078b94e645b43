"""Keeps what a worker sends and receives in the recorded training steps; passes everything on as it is."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from rlrun.config.schema import RunConfig
from rlrun.data.messages import ActionChunk, Observation, WeightBucket
from rlrun.data.recording import FOLDER, Recording, write_json, write_message
from rlrun.observability.telemetry import Telemetry

logger = logging.getLogger(__name__)


class Recorder:
    """One per env worker and actor rank 0. In steps that are not recorded it returns what it is given.

    A message is on disk before it goes on: what breaks a worker can be given to it again. Recording stops, with a
    line in the worker's log, where the worker's share of `record.max_bytes` is used up or the disk is full: the
    recorded run matters more than its recording.
    """

    def __init__(self, config: RunConfig, telemetry: Telemetry):
        settings = config.record
        self._steps = range(settings.first_step, settings.first_step + settings.num_steps)
        self._edges = set(settings.edges)
        self._share = settings.max_bytes // (config.env.num_workers + 1)
        self._telemetry = telemetry
        self._recording = Recording(Path(config.output_dir or ".") / FOLDER)
        self._used = 0
        self._is_stopped = False

    def conversation(
        self, step: int, talk: Generator[Observation, ActionChunk, tuple], ranks: range
    ) -> Generator[Observation, ActionChunk, tuple]:
        """The same conversation, recorded: observations, actions, and the trajectories for `ranks` at its end."""
        return self._taped(step, talk, ranks) if self._is_wanted(step) else talk

    def _taped(
        self, step: int, talk: Generator[Observation, ActionChunk, tuple], ranks: range
    ) -> Generator[Observation, ActionChunk, tuple]:
        self._forget(step)  # what an earlier process of this worker left
        number, answer = 0, None
        while True:
            try:
                observation = next(talk) if answer is None else talk.send(answer)
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
        """The same buckets, which carry what was learned in `step`."""
        return self._taped_weights(step, buckets) if self._is_wanted(step) else buckets

    def _taped_weights(self, step: int, buckets: Iterator[WeightBucket]) -> Iterator[WeightBucket]:
        for bucket in buckets:
            self._keep(step, "weights", bucket.index, bucket)
            yield bucket

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """What an update came to."""
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
        self._forget(step)
        logger.warning("recording ends before step %d: %s", step, why)

    def _forget(self, step: int) -> None:
        shutil.rmtree(self._recording.of_worker(step, self._telemetry.worker), ignore_errors=True)
