"""Recorder of the messages of a worker in the recorded training steps, and the env worker that records them."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlrun.config.schema import RunConfig
from rlrun.data.message_files import write_json, write_message
from rlrun.data.recording import METRICS, RECORDING_FOLDER, Recording
from rlrun.edges.weights import WeightBucket
from rlrun.system.telemetry import Telemetry
from rlrun.workers.env_worker import EnvWorker, Episodes

logger = logging.getLogger(__name__)


class Recorder:
    """Records messages; one per env worker and one for actor rank 0.

    A message is on disk before it is passed on, so that one that crashes a worker can be replayed. The recording ends,
    and the run goes on, if the worker's share of `record.max_bytes` is used up or the disk is full.
    """

    def __init__(self, config: RunConfig, telemetry: Telemetry):
        settings = config.record
        self.steps = range(settings.first_step, settings.first_step + settings.num_steps)
        self._edges = set(settings.edges)
        self._share = settings.max_bytes // (config.env.num_workers + 1)
        self._telemetry = telemetry
        self._recording = Recording(Path(config.output_dir or ".") / RECORDING_FOLDER)
        self._used = 0
        self._is_stopped = False

    def interaction(self, step: int, episodes: Episodes, ranks: range) -> Episodes:
        """Return the same generator, recorded: observations, actions, and finally the trajectories for `ranks`."""
        self._delete(step)  # left by an earlier process of this worker
        number = 0
        try:
            observation = next(episodes)
            while True:
                self._keep(step, "observation", number, observation)
                chunk = yield observation
                self._keep(step, "actions", number, chunk)
                number += 1
                observation = episodes.send(chunk)
        except StopIteration as finished:
            parts = finished.value
        for rank, shard in zip(ranks, parts[1:], strict=True):
            self._keep(step, "trajectory", rank, shard)
        return parts

    def update(self, step: int, metrics: dict[str, float], weights: Iterator[WeightBucket]) -> None:
        """Record the metrics of an update and the weights after it."""
        for bucket in weights:
            self._keep(step, "weights", bucket.index, bucket)
        place = self._recording.worker_folder(step, self._telemetry.worker) / METRICS
        self._write(step, place, lambda path: write_json(path, metrics))

    def _keep(self, step: int, edge: str, number: int, message: Any) -> None:
        if edge in self._edges:
            path = self._recording.message(step, self._telemetry.worker, edge, number)
            self._write(step, path, lambda path: write_message(path, message))

    def _write(self, step: int, path: Path, write: Callable[[Path], object]) -> None:
        if self._is_stopped:
            return
        try:
            write(path)
            num_bytes = path.stat().st_size
        except OSError as error:
            self._stop(step, f"{path} cannot be written: {error}")
            return
        self._used += num_bytes
        self._telemetry.count("recorded_bytes", num_bytes)
        if self._used > self._share:
            self._stop(step, f"this worker's share of record.max_bytes, {self._share} bytes, is used up")

    def _stop(self, step: int, why: str) -> None:
        self._is_stopped = True
        self._delete(step)
        logger.warning("recording ends before step %d: %s", step, why)

    def _delete(self, step: int) -> None:
        shutil.rmtree(self._recording.worker_folder(step, self._telemetry.worker), ignore_errors=True)


class RecordedEnvWorker(EnvWorker):
    """An env worker of a run with `record.num_steps`."""

    def __init__(self, config: RunConfig, rank: int, telemetry: Telemetry, python: str | None = None):
        super().__init__(config, rank, telemetry, python)
        self._recorder = Recorder(config, telemetry)

    def collect(self, step: int, policy_version: int = 0) -> Episodes:
        episodes = super().collect(step, policy_version)
        wanted = step in self._recorder.steps
        return self._recorder.interaction(step, episodes, self.actor_ranks) if wanted else episodes
