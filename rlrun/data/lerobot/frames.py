"""Numbers of all frames of a dataset: state, actions, time and task of each frame, and the location of its pictures.

Arrays of 256 MB and more are kept in an unnamed temporary file, mapped into memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlrun.data.lerobot import times
from rlrun.data.lerobot.layout import (
    COPY_AGAIN,
    FRAME_DONE,
    FRAME_REWARD,
    FRAME_SUCCESS,
    FRAME_TRUNCATED,
    DatasetError,
    Vector,
)
from rlrun.data.lerobot.tables import DatasetFiles, EpisodeRow, checked_read

if TYPE_CHECKING:
    import pyarrow as pa

_IN_MEMORY_BYTES = 256 * 2**20
_ROWS_AT_ONCE = 8192
_CORRECT_FEATURES = "correct the features of meta/info.json, or " + COPY_AGAIN


@dataclass(frozen=True, eq=False)
class FrameTable:
    """Numbers of F frames of E episodes, ordered by episode and step."""

    state: np.ndarray  # float32 [F, P]
    action: np.ndarray  # float32 [F, A]
    time_s: np.ndarray  # float64 [F], since the start of the episode
    task: np.ndarray  # int64 [F]: task_index; -1: the dataset names none
    success: np.ndarray  # bool [F]: next.success; False without such a feature
    reward: np.ndarray  # float32 [F]: next.reward; NaN without such a feature
    done: np.ndarray  # bool [F]: next.done without next.truncated; False without such a feature
    lengths: np.ndarray  # int64 [E]
    episodes: tuple[EpisodeRow, ...]  # E
    files: tuple[Path, ...]  # data files
    file: np.ndarray  # int32 [F]: index into `files`
    row: np.ndarray  # int64 [F]: row in the file
    remarks: tuple[str, ...] = ()  # sentences for the user on times and numbers of frames that were not taken as stored

    def episode_and_step(self, frame: int) -> tuple[int, int]:
        """Return episode_index and step of a frame."""
        ends = np.cumsum(self.lengths)
        episode = int(np.searchsorted(ends, frame, side="right"))
        return self.episodes[episode].index, int(frame - (ends[episode] - self.lengths[episode]))


class _Columns:
    """Arrays for all frames, filled file by file in the order of reading."""

    def __init__(self, num_rows: int, num_proprio: int, num_actions: int):
        self.num_frames = 0
        self.state = _allocate(num_rows, num_proprio)
        self.action = _allocate(num_rows, num_actions)
        self.time_s = np.zeros(num_rows)
        self.task, self.step, self.row, self.episode = (np.zeros(num_rows, np.int64) for _ in range(4))
        self.success = np.zeros(num_rows, bool)
        self.done = np.zeros(num_rows, bool)
        self.reward = np.zeros(num_rows, np.float32)
        self.file = np.zeros(num_rows, np.int32)

    def add(self, arrays: dict[str, np.ndarray]) -> None:
        """Append rows of every array."""
        begin = self.num_frames
        self.num_frames = self.num_frames + len(arrays["episode"])
        for name, values in arrays.items():
            getattr(self, name)[begin : self.num_frames] = values

    def ordered(self) -> None:
        """Sort all arrays by episode and step."""
        used = slice(0, self.num_frames)
        order = None
        if (np.diff(self.episode[used]) < 0).any() or _steps_fall(self.episode[used], self.step[used]):
            order = np.lexsort((self.step[used], self.episode[used]))
        for name in (
            "state",
            "action",
            "time_s",
            "task",
            "success",
            "reward",
            "done",
            "step",
            "row",
            "file",
            "episode",
        ):
            values = getattr(self, name)[used]
            setattr(self, name, values if order is None else _reorder(values, order))


def read_frames(files: DatasetFiles, episodes: list[EpisodeRow]) -> FrameTable:
    """Read the numbers of the frames of `episodes`, which are ordered by index. Raises DatasetError."""
    paths = _data_files(files, episodes)
    roles = files.roles
    num_proprio = roles.state.size if roles.state else 0
    num_rows = sum(_num_rows(files, path) for path in paths)
    counted = files.info.get("total_frames", num_rows)
    if isinstance(counted, int) and num_rows > counted:
        raise DatasetError(paths[0], f"data/ has {num_rows} frames, info.json counts {counted}", COPY_AGAIN)
    columns = _Columns(num_rows, num_proprio, roles.action.size)
    indices = np.array([episode.index for episode in episodes])
    for number, path in enumerate(paths):
        for arrays in _read_file(files, path, indices):
            columns.add(arrays | {"file": np.full(len(arrays["episode"]), number, np.int32)})
    columns.ordered()
    lengths = np.bincount(columns.episode, minlength=len(episodes))
    _require_lengths(files, episodes, lengths)
    time_s, remarks = times.since_begin(columns.time_s, columns.step, lengths, episodes, files.fps)
    remarks += times.repeated_steps(columns.step, lengths)
    frames = FrameTable(
        columns.state,
        columns.action,
        time_s,
        *(columns.task, columns.success, columns.reward, columns.done, lengths, tuple(episodes)),
        *(tuple(paths), columns.file, columns.row),
        remarks=tuple(remarks),
    )
    if roles.state is not None:
        _require_finite(roles.state, frames.state, frames)
    _require_finite(roles.action, frames.action, frames)
    return frames


def _require_lengths(files: DatasetFiles, episodes: list[EpisodeRow], lengths: np.ndarray) -> None:
    """Raise DatasetError if an episode has no frames, or another number than the table of episodes says."""
    for episode, length in zip(episodes, lengths, strict=True):
        if length != (episode.length or length) or not length:
            remark = "" if episode.length is None else f", its table says {episode.length}"
            cause = f"episode {episode.index} has {length} frames{remark}"
            raise DatasetError(episode.data_file or files.path("data"), cause, COPY_AGAIN)


def _data_files(files: DatasetFiles, episodes: list[EpisodeRow]) -> list[Path]:
    """Return the files with the frames of these episodes; all of data/ if the table of episodes names none."""
    named = list(dict.fromkeys(episode.data_file for episode in episodes))
    paths = [file for file in named if file is not None]
    if len(paths) < len(named):
        paths = sorted(files.path("data").glob("*/*.parquet"))
    if not paths:
        raise DatasetError(files.path("data"), "it holds no parquet file", COPY_AGAIN)
    return paths


def _num_rows(files: DatasetFiles, path: Path) -> int:
    with files.parquet(path) as table:
        return table.metadata.num_rows


def _read_file(files: DatasetFiles, path: Path, indices: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """Yield arrays for `_Columns`, batch by batch, of the rows whose episode_index is in `indices` (sorted)."""
    import pyarrow as pa

    first = 0
    with files.parquet(path) as table:
        wanted = _columns_of(files, path, set(table.schema_arrow.names))
        batches = table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=wanted)
        while (batch := checked_read(path, lambda: next(batches, None))) is not None:
            try:
                arrays = _read_batch(batch, files, indices)
            except (LookupError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
                cause = f"its columns do not fit the features of info.json ({error})"
                raise DatasetError(path, cause, _CORRECT_FEATURES) from error
            rows = arrays.pop("at")
            yield {name: values[rows] for name, values in arrays.items()} | {"row": first + rows}
            first += len(batch)


def _columns_of(files: DatasetFiles, path: Path, known: set[str]) -> list[str]:
    """Return the columns to read of a file that has the columns `known`. Raises DatasetError if one is missing."""
    vectors = [vector for vector in (files.roles.state, files.roles.action) if vector is not None]
    needed = [key for vector in vectors for key in vector.keys] + ["episode_index", "frame_index"]
    absent = [name for name in needed if name not in known]
    if absent:
        cause = f"it has no column {' and no column '.join(absent)}; its columns: {', '.join(sorted(known))}"
        raise DatasetError(path, cause, _CORRECT_FEATURES)
    others = ("timestamp", "task_index", FRAME_SUCCESS, FRAME_REWARD, FRAME_DONE, FRAME_TRUNCATED)
    return needed + [name for name in others if name in known]


def _read_batch(batch: pa.RecordBatch, files: DatasetFiles, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of all rows of a batch; "at": the rows of selected episodes."""
    index = _whole_numbers(batch, "episode_index")
    episode = np.searchsorted(indices, index).clip(max=len(indices) - 1)
    names = batch.schema.names
    nothing = np.full(len(batch), -1)
    state = files.roles.state
    return {
        "at": np.flatnonzero(indices[episode] == index),
        "episode": episode,
        "step": _whole_numbers(batch, "frame_index"),
        "time_s": _column_values(batch, "timestamp", np.float64)
        if "timestamp" in names
        else np.full(len(batch), np.nan),
        "task": _whole_numbers(batch, "task_index") if "task_index" in names else nothing,
        "success": _flags(batch, FRAME_SUCCESS),
        "reward": _column_values(batch, FRAME_REWARD, np.float32)
        if FRAME_REWARD in names
        else np.full(len(batch), np.nan, np.float32),
        "done": _flags(batch, FRAME_DONE) & ~_flags(batch, FRAME_TRUNCATED),
        "action": _vector(batch, files.roles.action),
        "state": _vector(batch, state) if state else np.zeros((len(batch), 0), np.float32),
    }


def _flags(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """Return bool [rows]; False without such a column."""
    if name not in batch.schema.names:
        return np.zeros(len(batch), bool)
    return _column_values(batch, name, np.float64) > 0


def _whole_numbers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    values = _column_values(batch, name, None)
    if values.dtype.kind not in "iu" or (len(values) and values.min() < 0):
        raise ValueError(f"{name} must hold whole numbers from 0")
    return values


def _column_values(batch: pa.RecordBatch, name: str, kind: type | None) -> np.ndarray:
    """Return one number per row, also of a column whose cells are lists of one, or nested lists."""
    column = batch.column(name)
    while column.type.num_fields:
        column = column.flatten()
    values = column.to_numpy(zero_copy_only=False)
    return values if kind is None else values.astype(kind)


def _vector(batch: pa.RecordBatch, vector: Vector) -> np.ndarray:
    """Return float32 [rows, size], the numbers of its features beside each other."""
    parts = [
        _column_values(batch, key, np.float32).reshape(len(batch), size)
        for key, size in zip(vector.keys, vector.sizes, strict=True)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


def _require_finite(vector: Vector, values: np.ndarray, frames: FrameTable) -> None:
    """Raise DatasetError for vectors [F, D] with NaN or infinity."""
    wrong = np.argwhere(~np.isfinite(values))
    if not len(wrong):
        return
    frame, dimension = (int(number) for number in wrong[0])
    episode, step = frames.episode_and_step(frame)
    name = " + ".join(vector.keys)
    raise DatasetError(
        frames.files[frames.file[frame]],
        f"{name}[{dimension}] of frame {step} of episode {episode} is {values[frame, dimension]}, and "
        f"{len(wrong) - 1} more numbers are not finite",
        "leave such episodes out (demos.episodes), or record them again",
    )


def _steps_fall(episode: np.ndarray, step: np.ndarray) -> bool:
    return bool(((np.diff(step) < 0) & (np.diff(episode) == 0)).any())


def _allocate(num_rows: int, size: int) -> np.ndarray:
    """Return an empty float32 [num_rows, size], in memory or in a temporary file."""
    if num_rows * size * 4 < _IN_MEMORY_BYTES:
        return np.empty((num_rows, size), np.float32)
    with tempfile.TemporaryFile(prefix="rlrun-demos-") as file:
        file.truncate(num_rows * size * 4)
        return np.memmap(file, np.float32, "r+", shape=(num_rows, size))  # which keeps the file open


def _reorder(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    if values.ndim == 1:
        return values[order]
    sorted_values = _allocate(*values.shape)
    for begin in range(0, len(order), _ROWS_AT_ONCE):
        sorted_values[begin : begin + _ROWS_AT_ONCE] = values[order[begin : begin + _ROWS_AT_ONCE]]
    return sorted_values
