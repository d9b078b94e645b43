"""What several workers recorded becomes one dataset: a part is a folder with a file for each episode.

Datasets are written with pyarrow, which would stay in the memory of a process that simulates; a part needs none.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlrun.data.lerobot.episode import Episode
from rlrun.data.lerobot.layout import RECORD_AGAIN, DatasetError
from rlrun.data.lerobot.writer import DemoWriter
from rlrun.data.recording import RecordingError, read_message, write_message


def keep_episode(part: Path, episode: Episode) -> None:
    """Into the folder `part`, under its seed."""
    write_message(part / f"{episode.seed}.episode", episode)


def join_parts(parts: Sequence[Path | str], folder: Path | str) -> Path:
    """One dataset at `folder` from the episodes of `parts`, ordered by seed, whoever recorded what; the parts go.

    What an earlier try left at `folder` is replaced. Raises DatasetError when an episode is damaged or holds other
    features.
    """
    shutil.rmtree(folder, ignore_errors=True)
    files = sorted((file for part in parts for file in Path(part).iterdir()), key=lambda file: int(file.stem))
    _write(files, Path(folder))
    for part in parts:
        shutil.rmtree(part)
    return Path(folder)


def _write(files: Iterable[Path], folder: Path) -> None:
    writer: DemoWriter | None = None
    try:
        for file in files:
            episode = _opened(file)
            writer = writer or DemoWriter(folder, episode.features)
            if episode.features != writer.features:
                raise DatasetError(file, "its features differ from those of the first episode", "record all alike")
            writer.add(episode)
        if writer is None:
            raise ValueError(f"the dataset {folder} has no episode: the parts are empty")
        writer.finish()
    finally:
        if writer is not None:
            writer.abort()


def _opened(file: Path) -> Episode:
    try:
        return read_message(file, Episode)
    except RecordingError as error:
        raise DatasetError(file, error.cause, RECORD_AGAIN) from error
