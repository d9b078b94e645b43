"""Recording of demonstrations: env workers save their episodes as files, and one of them writes the dataset."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.data.lerobot import DatasetError, DemoFeatures, DemoWriter, Episode
from rlrun.data.lerobot.layout import RECORD_AGAIN
from rlrun.data.recording import RecordingError, read_message, write_message
from rlrun.envs.vector_env import VectorEnv
from rlrun.observability.telemetry import Telemetry
from rlrun.workers.demonstrator import demonstrate


def record_episodes(env: VectorEnv, config: RunConfig, rank: int, part: Path, telemetry: Telemetry) -> None:
    """Fill the folder `part` with the episodes of env worker `rank`, one file per episode, named by its seed."""
    shutil.rmtree(part, ignore_errors=True)  # left by a run that was killed while recording
    part.mkdir(parents=True)
    demos, num_workers = config.demos, config.env.num_workers
    share = len(range(rank, demos.num_episodes, num_workers))
    for episode in demonstrate(env, share, demos.seed + rank, num_workers, demos.noise):
        write_message(part / f"{episode.seed}.episode", episode)
        telemetry.count("demos")


def write_dataset(features: DemoFeatures, parts: Sequence[str], folder: str) -> None:
    """Write one dataset to `folder` from the episodes of all `parts`, ordered by seed, then remove the parts.

    Replaces files that an earlier try left at `folder`. Raises DatasetError naming a damaged episode.
    """
    shutil.rmtree(folder, ignore_errors=True)
    files = sorted((file for part in parts for file in Path(part).iterdir()), key=lambda file: int(file.stem))
    with DemoWriter(folder, features) as writer:
        for file in files:
            try:
                writer.add(read_message(file, Episode))
            except RecordingError as error:
                raise DatasetError(file, error.cause, RECORD_AGAIN) from error
        writer.finish()
    for part in parts:
        shutil.rmtree(part)
