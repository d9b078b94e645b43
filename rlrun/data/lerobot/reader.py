"""Reads a whole dataset into memory: frames, batches of action chunks, normalization statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.data import checksums
from rlrun.data.lerobot import layout
from rlrun.data.lerobot.layout import RECORD_AGAIN, DatasetError, DemoFeatures
from rlrun.system.bounded_files import read_json

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS = 100_000_000  # of a file; compressed, absurd numbers of equal rows take no space
VECTOR_STATS = ("min", "max", "mean", "std", "q01", "q99")


class DatasetFiles:
    """The files of one dataset. Reading a file checks it; every error is a DatasetError that names the file."""

    def __init__(self, folder: Path):
        self.folder = folder
        if not folder.is_dir():
            raise DatasetError(folder, "the folder does not exist", "correct the path, or remove it to record one")
        self._compare_checksums()
        self.info = self._json(layout.INFO)
        try:
            self.features = DemoFeatures.from_info(self.info, self.path(layout.INFO))
        except DatasetError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise DatasetError(
                self.path(layout.INFO), f"not a LeRobot description ({error!r})", RECORD_AGAIN
            ) from error

    def _compare_checksums(self) -> None:
        """Compare checksums if the dataset has them: datasets that rlrun recorded do, others do not."""
        if (self.folder / checksums.CHECKSUMS).is_file() and (damages := checksums.damages(self.folder)):
            raise DatasetError(
                self.folder,
                "; ".join(damages[:3]),
                f"{RECORD_AGAIN}. If its files were changed on purpose, delete {checksums.CHECKSUMS} in it",
            )

    def path(self, name: str) -> Path:
        """Return the path of a file of the layout."""
        return self.folder / name

    @cached_property
    def stats(self) -> dict[str, dict]:
        """Return meta/stats.json; checks that it has the quantiles for normalization."""
        stats = self._json(layout.STATS)
        sizes = {layout.STATE: self.features.num_proprio, layout.ACTION: len(self.features.action_names)}
        for key, size in sizes.items():
            for name in VECTOR_STATS:
                values = _numbers(stats, key, name)
                if values.size != size:
                    raise DatasetError(
                        self.path(layout.STATS),
                        f"{key}/{name} has {values.size} usable numbers, {size} are needed",
                        "compute the statistics again (LeRobot >= 0.4 writes q01 and q99)",
                    )
                stats[key][name] = values.tolist()
        return stats

    @cached_property
    def episodes(self) -> list[dict]:
        """Return one row per episode, ordered by episode_index; without seed and success: -1 and True."""
        files = sorted((self.folder / "meta/episodes").glob("*/*.parquet"))
        if not files:
            raise DatasetError(self.path("meta/episodes"), "no episode table", RECORD_AGAIN)
        rows = [_checked(file, row) for file in files for row in self._table(file).to_pylist()]
        rows.sort(key=lambda row: row["episode_index"])
        expected = self.info.get("total_episodes")
        if not rows or len(rows) != expected or any(row["episode_index"] != i for i, row in enumerate(rows)):
            raise DatasetError(files[0], f"{len(rows)} episodes listed, info.json counts {expected}", RECORD_AGAIN)
        return rows

    @cached_property
    def frames(self) -> pa.Table:
        """Return all frames, ordered by episode and step."""
        import pyarrow as pa

        try:
            table = pa.concat_tables([self._table(file) for file in dict.fromkeys(map(self._data_file, self.episodes))])
            episode_of_frame = _whole_numbers(table, "episode_index", len(self.episodes))
            frame_of_episode = _whole_numbers(table, "frame_index", len(table))
        except (pa.ArrowException, KeyError, ValueError) as error:
            if isinstance(error, DatasetError):
                raise
            raise DatasetError(
                self.path("data"), f"its columns do not fit each other ({error})", RECORD_AGAIN
            ) from error
        for row, found in zip(self.episodes, np.bincount(episode_of_frame, minlength=len(self.episodes)), strict=True):
            self._check_length(row, found)
        if (np.diff(episode_of_frame) < 0).any():
            table = table.take(np.lexsort((frame_of_episode, episode_of_frame)))
        return table

    def read_all(self) -> dict[str, Any]:
        """Return the frames of all episodes in order: vectors float32 [F, D], images as F PNG byte strings."""
        return self._columns(self.frames)

    def _check_length(self, row: dict, found: int) -> None:
        if found != row["length"]:
            cause = f"episode {row['episode_index']} has {found} frames, its table says {row['length']}"
            raise DatasetError(self._data_file(row), cause, RECORD_AGAIN)

    def _data_file(self, row: dict) -> Path:
        return self.path(layout.DATA.format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"]))

    def _columns(self, table: pa.Table) -> dict[str, Any]:
        import pyarrow as pa

        columns: dict[str, Any] = {}
        sizes = {layout.STATE: self.features.num_proprio, layout.ACTION: len(self.features.action_names)}
        try:
            for key, size in sizes.items():
                column = table[key].combine_chunks()
                flat = column.flatten() if column.type.num_fields else column  # scalars are not lists
                columns[key] = flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(table), size)
                self._check_finite(key, columns[key])
            for key in self.features.image_keys:
                columns[key] = table[key].combine_chunks().field("bytes").to_pylist()
        except DatasetError:
            raise
        except (LookupError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
            cause = f"its columns do not fit the features of info.json ({error})"
            raise DatasetError(self.path("data"), cause, RECORD_AGAIN) from error
        return columns

    def _check_finite(self, key: str, values: np.ndarray) -> None:
        """Refuse vectors [F, D] with a number that is not finite, which would train a policy to give such actions."""
        wrong = np.argwhere(~np.isfinite(values))
        if not len(wrong):
            return
        frame, dimension = wrong[0]
        ends = np.cumsum([row["length"] for row in self.episodes])
        episode = int(np.searchsorted(ends, frame, side="right"))
        first = ends[episode] - self.episodes[episode]["length"]
        raise DatasetError(
            self._data_file(self.episodes[episode]),
            f"{key}[{dimension}] of frame {frame - first} of episode {episode} is {values[frame, dimension]}, and "
            f"{len(wrong) - 1} more numbers are not finite",
            "leave such episodes out of the dataset, or record them again",
        )

    def _json(self, name: str) -> dict:
        try:
            content = read_json(self.path(name))
            if not isinstance(content, dict):
                raise ValueError(f"it holds a {type(content).__name__}, not an object")
            return content
        except FileNotFoundError as error:
            raise DatasetError(self.path(name), "the file is missing", RECORD_AGAIN) from error
        except ValueError as error:
            raise DatasetError(self.path(name), f"it is not JSON ({error})", RECORD_AGAIN) from error

    def _table(self, path: Path) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(path)
            if file.metadata.num_rows > MAX_ROWS:
                raise OSError(f"it would have {file.metadata.num_rows} rows")
            return file.read()
        except FileNotFoundError as error:
            raise DatasetError(path, "the file is missing", RECORD_AGAIN) from error
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(path, f"it is damaged ({error})", RECORD_AGAIN) from error


@dataclass(frozen=True, eq=False)
class DemoBatch:
    """dataset -> imitation: M frames, each with the action chunk that follows it.

    Example: M=64, one 64 px camera, C=4, A=8: images (64, 1, 64, 64, 3), actions (64, 4, 8).
    """

    images: np.ndarray  # uint8 [M, N, H, W, 3]
    proprio: np.ndarray  # float32 [M, P]
    instructions: tuple[str, ...]  # M
    actions: np.ndarray  # float32 [M, C, A]; after the end of an episode its last action repeats
    step_valid: np.ndarray  # bool [M, C]; False: a repeated action


@dataclass(frozen=True, eq=False)
class DemoDataset:
    """All frames of a dataset in memory. F frames, E episodes."""

    features: DemoFeatures
    images: np.ndarray  # uint8 [F, N, H, W, 3]
    proprio: np.ndarray  # float32 [F, P]
    actions: np.ndarray  # float32 [F, A]
    episode_ends: np.ndarray  # int64 [F]: index after the last frame of the frame's episode
    instructions: tuple[str, ...]  # F
    seeds: np.ndarray  # int64 [E]; -1 if unknown
    success: np.ndarray  # bool [E]
    stats: dict[str, dict]  # meta/stats.json

    def __len__(self) -> int:
        return len(self.actions)

    @classmethod
    def load(cls, folder: Path | str) -> DemoDataset:
        """Read and check the dataset. Raises DatasetError naming the file, the cause and the remedy."""
        files = DatasetFiles(Path(folder))
        stats, rows = files.stats, files.episodes
        columns = files.read_all()
        lengths = np.array([row["length"] for row in rows])
        return cls(
            features=files.features,
            images=_decode(files, columns),
            proprio=columns[layout.STATE],
            actions=columns[layout.ACTION],
            episode_ends=np.repeat(np.cumsum(lengths), lengths),
            instructions=tuple(row["tasks"][0] for row in rows for _ in range(row["length"])),
            seeds=np.array([row["seed"] for row in rows], np.int64),
            success=np.array([row["success"] for row in rows], bool),
            stats=stats,
        )

    def batch(self, indices: np.ndarray, num_action_chunks: int) -> DemoBatch:
        """Return frames `indices` (int [M]), each with its next C = num_action_chunks actions."""
        steps = indices[:, None] + np.arange(num_action_chunks)
        step_valid = steps < self.episode_ends[indices][:, None]
        steps = np.minimum(steps, self.episode_ends[indices][:, None] - 1)
        instructions = tuple(self.instructions[i] for i in indices)
        return DemoBatch(self.images[indices], self.proprio[indices], instructions, self.actions[steps], step_valid)

    def norm_stats(self, action_mask: Sequence[bool] | None = None) -> dict[str, Any]:
        """Return normalization statistics in OpenVLA's format: {"action": {"q01", "q99", "mask", …}, "proprio": …}.

        action_mask: A values, False: that dimension is used as it is; None: all are normalised.
        """
        mask = list(action_mask) if action_mask is not None else [True] * len(self.features.action_names)
        if len(mask) != len(self.features.action_names):
            raise ValueError(
                f"action_mask has {len(mask)} values, actions {len(self.features.action_names)} dimensions"
            )
        entries = {"action": layout.ACTION, "proprio": layout.STATE}
        stats: dict[str, Any] = {
            name: {s: list(self.stats[key][s]) for s in VECTOR_STATS} for name, key in entries.items()
        }
        stats["action"]["mask"] = mask
        return stats | {"num_transitions": len(self), "num_trajectories": len(self.seeds)}


def _numbers(stats: dict, key: str, name: str) -> np.ndarray:
    """Return one statistic as float64 [D]; [0] if it is no list of finite numbers."""
    try:
        values = np.ravel(np.array(stats[key][name], np.float64))
    except (LookupError, TypeError, ValueError, OverflowError):
        return np.zeros(0)
    return values if np.isfinite(values).all() else np.zeros(0)


def _checked(file: Path, row: dict) -> dict:
    """Return a row of the episode table with all that is read of it. Raises DatasetError."""
    counts = {"episode_index": 0, "length": 1, "data/chunk_index": 0, "data/file_index": 0}
    row = {"seed": -1, "success": True, "tasks": None} | row
    try:
        checked: dict[str, Any] = {
            name: layout.whole_number(name, row.get(name), low, MAX_ROWS) for name, low in counts.items()
        }
        checked["seed"] = layout.whole_number("seed", row["seed"], -(2**63), 2**63 - 1)
        if not isinstance(row["success"], (bool, int, float)):
            raise ValueError(f"success is {row['success']!r}, and must be true or false")
        if not isinstance(row["tasks"], list) or not row["tasks"] or not isinstance(row["tasks"][0], str):
            raise ValueError(f"tasks is {row['tasks']!r}, and must be a list of sentences")
    except ValueError as error:
        raise DatasetError(file, f"{error} (episode {row.get('episode_index')!r})", RECORD_AGAIN) from error
    return checked | {"success": bool(row["success"]), "tasks": row["tasks"]}


def _whole_numbers(table: pa.Table, name: str, end: int) -> np.ndarray:
    """Return a column of numbers from 0 to below `end`. Raises KeyError or ValueError."""
    values = table[name].to_numpy()
    if values.dtype.kind not in "iu" or (len(values) and not 0 <= values.min() <= values.max() < end):
        raise ValueError(f"{name} must hold whole numbers from 0 to {end - 1}")
    return values


def _decode(files: DatasetFiles, columns: dict[str, Any]) -> np.ndarray:
    f = files.features
    shape = (len(columns[layout.ACTION]), len(f.cameras), f.height, f.width, 3)
    try:
        images = np.empty(shape, np.uint8)
    except MemoryError as error:
        cause = f"its {shape[0]} frames of {shape[1]} cameras take {math.prod(shape) / 1e9:.3g} GB of memory"
        raise DatasetError(files.path("data"), cause, "take fewer episodes, or scale the images down") from error
    for camera, key in enumerate(f.image_keys):
        for frame, data in enumerate(columns[key]):
            try:
                images[frame, camera] = layout.decode_image(data, f.height, f.width)
            except Exception as error:  # Pillow raises many kinds for damaged bytes
                cause = f"{key} of frame {frame} is no image ({error})"
                raise DatasetError(files.path("data"), cause, RECORD_AGAIN) from error
    return images
