"""Reads a whole dataset into memory: frames, batches of action chunks, normalization statistics."""

from __future__ import annotations

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
        except (KeyError, TypeError, AttributeError) as error:
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
                values = np.ravel(stats.get(key, {}).get(name, ()))
                if values.size != size or not np.isfinite(values).all():
                    raise DatasetError(
                        self.path(layout.STATS),
                        f"{key}/{name} has {values.size} usable numbers, {size} are needed",
                        "compute the statistics again (LeRobot >= 0.4 writes q01 and q99)",
                    )
        return stats

    @cached_property
    def episodes(self) -> list[dict]:
        """Return one row per episode, ordered by episode_index; without seed and success: -1 and True."""
        files = sorted((self.folder / "meta/episodes").glob("*/*.parquet"))
        if not files:
            raise DatasetError(self.path("meta/episodes"), "no episode table", RECORD_AGAIN)
        rows = [row for file in files for row in self._table(file).to_pylist()]
        rows = [{"seed": -1, "success": True} | row for row in rows]
        rows.sort(key=lambda row: row["episode_index"])
        expected = self.info["total_episodes"]
        if [row["episode_index"] for row in rows] != list(range(expected)):
            raise DatasetError(files[0], f"{len(rows)} episodes listed, info.json counts {expected}", RECORD_AGAIN)
        return rows

    @cached_property
    def frames(self) -> pa.Table:
        """Return all frames, ordered by episode and step."""
        import pyarrow as pa

        table = pa.concat_tables([self._table(file) for file in dict.fromkeys(map(self._data_file, self.episodes))])
        episode_of_frame = table["episode_index"].to_numpy()
        for row, found in zip(self.episodes, np.bincount(episode_of_frame, minlength=len(self.episodes)), strict=True):
            self._check_length(row, found)
        if (np.diff(episode_of_frame) < 0).any():
            table = table.take(np.lexsort((table["frame_index"].to_numpy(), episode_of_frame)))
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
        columns: dict[str, Any] = {}
        sizes = {layout.STATE: self.features.num_proprio, layout.ACTION: len(self.features.action_names)}
        try:
            for key, size in sizes.items():
                column = table[key].combine_chunks()
                flat = column.flatten() if column.type.num_fields else column  # scalars are not lists
                columns[key] = flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(table), size)
            for key in self.features.image_keys:
                columns[key] = table[key].combine_chunks().field("bytes").to_pylist()
        except (KeyError, ValueError) as error:
            cause = f"its columns do not fit the features of info.json ({error})"
            raise DatasetError(self.path("data"), cause, RECORD_AGAIN) from error
        return columns

    def _json(self, name: str) -> dict:
        try:
            return read_json(self.path(name))
        except FileNotFoundError as error:
            raise DatasetError(self.path(name), "the file is missing", RECORD_AGAIN) from error
        except ValueError as error:
            raise DatasetError(self.path(name), f"it is not JSON ({error})", RECORD_AGAIN) from error

    def _table(self, path: Path) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(path).read()
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


def _decode(files: DatasetFiles, columns: dict[str, Any]) -> np.ndarray:
    f = files.features
    images = np.empty((len(columns[layout.ACTION]), len(f.cameras), f.height, f.width, 3), np.uint8)
    for camera, key in enumerate(f.image_keys):
        for frame, data in enumerate(columns[key]):
            try:
                image = layout.decode_png(data)
            except (OSError, SyntaxError, TypeError) as error:  # raised by Pillow for damaged bytes or None
                raise DatasetError(
                    files.path("data"), f"{key} of frame {frame} is no image ({error})", RECORD_AGAIN
                ) from error
            if image.shape != (f.height, f.width, 3):
                raise DatasetError(
                    files.path("data"),
                    f"{key} of frame {frame} is {image.shape}, info.json says {f.height} x {f.width}",
                    RECORD_AGAIN,
                )
            images[frame, camera] = image
    return images
