"""Writer of a dataset, episode by episode; the folder appears atomically at the end."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rlrun.data import checksums
from rlrun.data.lerobot import layout, statistics
from rlrun.data.lerobot.layout import DatasetError, DemoFeatures
from rlrun.data.lerobot.pictures import encode_png

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


@dataclass(frozen=True, eq=False)
class Episode:
    """env worker -> dataset: L frames; frame i is the observation before action i.

    Example: L=60, one 64 px camera: images (60, 1, 64, 64, 3), proprio (60, 61), actions (60, 8).
    """

    images: np.ndarray  # uint8 [L, N, H, W, 3]
    proprio: np.ndarray  # float32 [L, P]
    actions: np.ndarray  # float32 [L, A], simulator units
    instruction: str
    success: bool
    seed: int
    rewards: np.ndarray | None = None  # float32 [L]; None: unknown
    is_terminated: bool = False  # by success or failure; False: the time limit cut it off, or unknown


class DemoWriter:
    """Writer that collects episodes in a temporary folder next to `folder` and renames it at the end.

    Example::

        with DemoWriter(Path("demos"), features) as writer:      # an exception inside removes the folder
            writer.add(Episode(images, proprio, actions, "turn on the radio", success=True, seed=17))
            writer.finish()
    """

    def __init__(self, folder: Path | str, features: DemoFeatures):
        """Start a dataset. Raises DatasetError if `folder` exists."""
        self.folder = Path(folder)
        self.features = features
        if self.folder.exists():
            raise DatasetError(self.folder, "it exists already", "remove it or choose another folder")
        self._partial = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.partial")
        shutil.rmtree(self._partial, ignore_errors=True)  # left by a killed process with the same id
        self._partial.mkdir(parents=True)
        self._file: pq.ParquetWriter | None = None
        self._file_number = -1  # counts data files; chunk and file index follow from it
        self._episodes: list[dict] = []
        self._tasks: dict[str, int] = {}
        self._num_frames = 0
        self._vectors: dict[str, list[np.ndarray]] = {key: [] for key in features.vectors}
        self._moments = {key: statistics.ImageMoments() for key in features.image_keys}

    def add(self, episode: Episode) -> int:
        """Append an episode. Returns its index. Raises ValueError naming an array that does not fit the features."""
        _check_episode(self.features, episode)
        vectors = {layout.STATE: episode.proprio, layout.ACTION: episode.actions}
        columns: dict[str, Any] = {key: vectors[key] for key in self.features.vectors}
        if self.features.has_rewards:
            columns[layout.FRAME_REWARD] = episode.rewards
            columns[layout.FRAME_DONE] = np.arange(len(episode.actions)) == len(episode.actions) - episode.is_terminated
        for camera, key in enumerate(self.features.image_keys):
            frames = episode.images[:, camera]
            self._moments[key].add(frames)
            columns[key] = [encode_png(frame) for frame in frames]
        return self._append(columns, episode.instruction, bool(episode.success), int(episode.seed))

    def finish(self) -> Path:
        """Write statistics and tables, and rename the folder. Raises ValueError without episodes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._episodes:
            raise ValueError(f"the dataset {self.folder} has no episode; add one before finish()")
        self._close_file()
        episodes = self._partial / layout.EPISODES.format(chunk_index=0, file_index=0)
        episodes.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(self._episodes), episodes)
        tasks = {"task_index": list(self._tasks.values()), "task": list(self._tasks)}
        pq.write_table(_indexed_by_task(pa.table(tasks)), self._partial / layout.TASKS)
        self._write_json(layout.STATS, self._stats())
        self._write_json(layout.INFO, self._info())
        checksums.write(self._partial)
        checksums.rename_durably(self._partial, self.folder)
        return self.folder

    def abort(self) -> None:
        """Remove the temporary folder; does nothing after finish()."""
        if self._partial.exists():
            self._close_file()
            shutil.rmtree(self._partial)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abort()

    def _append(self, columns: dict[str, Any], instruction: str, success: bool, seed: int) -> int:
        """Append an episode. columns: vectors [L, D] and, per camera, L PNG byte strings. Returns its index."""
        episode = len(self._episodes)
        start = self._num_frames
        length = len(columns[layout.ACTION])
        task = self._tasks.setdefault(instruction, len(self._tasks))
        steps = np.arange(length)
        columns |= {
            "timestamp": (steps / self.features.fps).astype(np.float32),
            "frame_index": steps,
            "episode_index": np.full(length, episode),
            "index": start + steps,
            "task_index": np.full(length, task),
        }
        chunk, file = self._write_frames(columns)
        self._num_frames += length
        for key, rows in self._vectors.items():
            rows.append(columns[key])
        self._episodes.append(
            {
                "episode_index": episode,
                "tasks": [instruction],
                "length": length,
                "data/chunk_index": chunk,
                "data/file_index": file,
                "dataset_from_index": start,
                "dataset_to_index": start + length,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
                "success": success,
                "seed": seed,
            }
        )
        return episode

    def _write_frames(self, columns: dict[str, Any]) -> tuple[int, int]:
        """Write one row group. Returns its chunk and file index."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _schema(self.features)
        arrays = [_arrow(columns[name], schema.field(name).type) for name in schema.names]
        if self._file is not None and self._path().stat().st_size >= layout.FILE_MEGABYTES * 2**20:
            self._close_file()
        if self._file is None:
            self._file_number += 1
            self._path().parent.mkdir(parents=True, exist_ok=True)
            # PNG is compressed already, and other columns are small
            self._file = pq.ParquetWriter(self._path(), schema, compression="snappy", use_dictionary=False)
        self._file.write_table(pa.Table.from_arrays(arrays, schema=schema))
        return divmod(self._file_number, layout.FILES_PER_CHUNK)

    def _path(self) -> Path:
        chunk, file = divmod(self._file_number, layout.FILES_PER_CHUNK)
        return self._partial / layout.DATA.format(chunk_index=chunk, file_index=file)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _stats(self) -> dict[str, dict]:
        vectors = {key: statistics.vector_stats(np.concatenate(rows)) for key, rows in self._vectors.items()}
        return vectors | {key: moments.to_stats() for key, moments in self._moments.items()}

    def _info(self) -> dict:
        fps = self.features.fps
        return {
            "codebase_version": layout.VERSION,
            "robot_type": None,  # LeRobot takes any name or none
            "total_episodes": len(self._episodes),
            "total_frames": self._num_frames,
            "total_tasks": len(self._tasks),
            "chunks_size": layout.FILES_PER_CHUNK,
            "data_files_size_in_mb": layout.FILE_MEGABYTES,
            "video_files_size_in_mb": layout.FILE_MEGABYTES,
            "fps": int(fps) if fps.is_integer() else fps,  # LeRobot expects an integer
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": layout.DATA,
            "video_path": None,
            "features": self.features.to_info(),
        }

    def _write_json(self, name: str, content: dict) -> None:
        (self._partial / name).write_text(json.dumps(content, indent=2, allow_nan=False))


def _check_episode(features: DemoFeatures, episode: Episode) -> None:
    f = features
    length = len(episode.actions)
    size = _image_size(f) if f.cameras else episode.images.shape[2:4]
    wanted = {
        "images": (episode.images, np.uint8, (length, len(f.cameras), *size, 3)),
        "proprio": (episode.proprio, np.float32, (length, f.num_proprio)),
        "actions": (episode.actions, np.float32, (length, f.num_actions)),
    }
    if f.has_rewards:
        wanted["rewards"] = (np.asarray(episode.rewards), np.float32, (length,))
    for name, (array, dtype, shape) in wanted.items():
        if array.dtype != dtype or array.shape != shape or not length:
            raise ValueError(f"{name} is {array.dtype} {array.shape}, the dataset holds {np.dtype(dtype)} {shape}")
        if dtype is np.float32 and not np.isfinite(array).all():
            raise ValueError(f"{name} holds a NaN or an infinity; this episode must not become a demonstration")


def _image_size(features: DemoFeatures) -> tuple[int, int]:
    """Return the common size of all cameras, since an Episode has one array of images. Raises ValueError."""
    sizes = set(features.camera_sizes)
    if len(sizes) > 1:
        raise ValueError(f"an Episode's cameras have one size, and the features name {sorted(sizes)}")
    return next(iter(sizes), (0, 0))


def _schema(features: DemoFeatures) -> pa.Schema:
    import pyarrow as pa

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # the library `datasets` reads this as an Image
    fields = [(key, image) for key in features.image_keys]
    fields += [
        (key, pa.list_(pa.float32(), size) if size > 1 else pa.float32()) for key, (size, _) in features.vectors.items()
    ]
    numbers = features.reward_columns | layout.INDEX_COLUMNS
    fields += [(key, pa.type_for_alias(kind)) for key, kind in numbers.items()]
    return pa.schema(fields)


def _arrow(column: Any, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(
            [pa.array(column, pa.binary()), pa.nulls(len(column), pa.string())], fields=list(kind)
        )
    flat = pa.array(np.ascontiguousarray(column).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, type=kind) if pa.types.is_fixed_size_list(kind) else flat.cast(kind)


def _indexed_by_task(table: pa.Table) -> pa.Table:
    """Mark `task` as the index column, with which LeRobot (pandas) looks up tasks."""
    number = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    text = {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [number | {"metadata": None}, text | {"metadata": None}],
    }
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})
