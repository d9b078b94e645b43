"""Description of a dataset: info.json, episodes, sentences, statistics, and a digest."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.data import checksums
from rlrun.data.lerobot import layout
from rlrun.data.lerobot.layout import COPY_AGAIN, COPY_LINKED, DatasetError, Roles, find_roles, whole_number
from rlrun.system.local_files import MAX_JSON_BYTES, parse_json, read_json, read_text

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rlrun.config.schema import DemosConfig

_LFS_POINTER = b"version https://git-lfs"
_MAX_META_BYTES = 2 * 1024**3  # of one file in meta/
_ROWS_PER_BYTE = 4  # of a parquet file; numbers of frames, which all differ, take more
_MAX_NAME = 1024  # characters of a file's path in the dataset
_LONG_NUMBER = re.compile(r"\d{3,}")
_CONVERT = (
    "convert it with LeRobot: python -m lerobot.datasets.v30.convert_dataset_v21_to_v30, after "
    "lerobot.datasets.v21.convert_dataset_v20_to_v21 and lerobot.datasets.v2.convert_dataset_v1_to_v2 if it is older"
)


@dataclass(frozen=True)
class VideoPart:
    """The frames of one episode in a video. Example: VideoPart(Path("file-000.mp4"), 12.5)."""

    file: Path
    from_s: float  # time in the file at which the episode begins


@dataclass(frozen=True)
class EpisodeRow:
    """One episode of the table of episodes."""

    index: int  # episode_index of the dataset
    length: int | None  # frames; None: unknown
    tasks: tuple[str, ...]  # its sentences; (): the table names none
    seed: int  # -1: unknown
    success: bool | None  # None: unknown
    data_file: Path | None  # None: any of data/
    videos: dict[str, VideoPart]  # by feature


class DatasetFiles:
    """Files of a dataset. Reading a file validates it; every error is a DatasetError that names the file."""

    def __init__(self, folder: Path, demos: DemosConfig, cameras: Sequence[str] | None = None):
        """cameras: names of the cameras to take, in this order; None: all."""
        self.folder = folder
        if not folder.is_dir():
            raise DatasetError(folder, "the folder does not exist", "correct the path, or remove it to record one")
        self._require_own_files()
        self._compare_checksums()
        self.info = self._json(layout.INFO)
        self.version = str(self.info.get("codebase_version"))
        if self.version not in (layout.VERSION, *layout.OLD_VERSIONS):
            known = ", ".join((*layout.OLD_VERSIONS, layout.VERSION))
            raise DatasetError(
                self.path(layout.INFO), f"it has layout version {self.version}, rlrun reads {known}", _CONVERT
            )
        try:
            self.fps = _frame_rate(self.info["fps"])
            self.roles: Roles = find_roles(self.info["features"], demos.keys, cameras, self.path(layout.INFO))
        except DatasetError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
            cause = f"it does not describe a LeRobot dataset ({error!r})"
            raise DatasetError(self.path(layout.INFO), cause, "correct the file, or " + COPY_AGAIN) from error

    @property
    def is_old(self) -> bool:
        """Return whether the layout has one file per episode (before v3.0)."""
        return self.version in layout.OLD_VERSIONS

    def _require_own_files(self) -> None:
        """Raise DatasetError for pipes, sockets, devices, and links that lead out of the folder."""
        root = self.folder.resolve()
        blobs = (
            root.parents[1] / "blobs" if root.parent.name == "snapshots" else root
        )  # the cache of Hugging Face's hub
        for file in self.folder.rglob("*"):
            if any(part.startswith(".") for part in file.relative_to(self.folder).parts):
                continue  # caches of tools; the layout names no such file
            if file.is_symlink() and not any(file.resolve().is_relative_to(allowed) for allowed in (root, blobs)):
                raise DatasetError(file, "it is a link that leads out of the dataset", COPY_LINKED)
            if file.is_relative_to(self.folder / "meta") and file.is_file() and file.stat().st_size > _MAX_META_BYTES:
                raise DatasetError(file, f"it is larger than {_MAX_META_BYTES} bytes", COPY_AGAIN)
            if file.exists() and not file.is_file() and not file.is_dir():
                raise DatasetError(file, "it is no regular file, but a pipe, socket or device", COPY_AGAIN)

    def _compare_checksums(self) -> None:
        """Verify the checksums if the dataset has them: those recorded by rlrun do."""
        if (self.folder / checksums.CHECKSUMS).is_file() and (damages := checksums.find_corruption(self.folder)):
            raise DatasetError(
                self.folder,
                "; ".join(damages[:3]),
                f"{COPY_AGAIN}. If its files were changed on purpose, delete {checksums.CHECKSUMS} in it",
            )

    def path(self, name: str) -> Path:
        """Return the path of a file of the layout."""
        return self.folder / name

    # --- episodes ---------------------------------------------------------------------------

    @cached_property
    def episodes(self) -> list[EpisodeRow]:
        """Return one row per episode, ordered by episode_index, which may have gaps."""
        file, raw = self._old_episodes() if self.is_old else self._new_episodes()
        rows = sorted((self._episode(file, row) for row in raw), key=lambda row: row.index)
        twice = [row.index for row, other in pairwise(rows) if row.index == other.index]
        counted = self.info.get("total_episodes", len(rows))
        if not rows or twice or len(rows) != counted:
            listed = f"{len(rows)} episodes ({rows[0].index} to {rows[-1].index})" if rows else "0 episodes"
            cause = f"episode_index {twice[0]} stands twice" if twice else f"it lists {listed}, info.json counts"
            raise DatasetError(file, cause if twice else f"{cause} {counted}", COPY_AGAIN)
        return rows

    def _old_episodes(self) -> tuple[Path, list[dict]]:
        return self.path(layout.OLD_EPISODES), self._json_lines(layout.OLD_EPISODES)

    def _new_episodes(self) -> tuple[Path, list[dict]]:
        files = sorted(self.path("meta/episodes").glob("*/*.parquet"))
        if not files:
            raise DatasetError(self.path("meta/episodes"), "it holds no table of episodes", COPY_AGAIN)
        return files[0], [row for file in files for row in self._episode_table(file).to_pylist()]

    def _episode_table(self, file: Path) -> pa.Table:
        """Read a table of episodes without its statistics, which are its largest part."""
        parquet = self.parquet(file)
        wanted = [name for name in parquet.schema_arrow.names if not name.startswith("stats/")]
        return checked_read(file, lambda: parquet.read(columns=wanted))

    def _episode(self, file: Path, row: dict) -> EpisodeRow:
        try:
            index = whole_number("episode_index", row.get("episode_index"), 0, layout.MAX_ROWS)
            length = row.get("length")
            seed = row.get("seed")
            success = row.get("success")
            if success is not None and not isinstance(success, (bool, int, float)):
                raise ValueError(f"success is {success!r}, and must be true or false")
            return EpisodeRow(
                index,
                None if length is None else whole_number("length", length, 1, layout.MAX_ROWS),
                _sentences(row.get("tasks")),
                -1 if seed is None else whole_number("seed", seed, -(2**63), 2**63 - 1),
                None if success is None else bool(success),
                self._data_file(index, row),
                {c.key: self._video(c.key, index, row) for c in self.roles.cameras if c.is_video},
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if isinstance(error, DatasetError):
                raise
            cause = f"{error} (episode {row.get('episode_index')!r})"
            raise DatasetError(file, cause, "correct the table, or " + COPY_AGAIN) from error

    def _data_file(self, index: int, row: dict) -> Path | None:
        if self.is_old:
            return self._named_by_info("data_path", layout.OLD_DATA, index, {})
        place = {name: row.get(f"data/{name}") for name in ("chunk_index", "file_index")}
        if all(number is None for number in place.values()):
            return None  # every file of data/ is searched
        return self._named_by_info("data_path", layout.DATA, index, place)

    def _video(self, key: str, index: int, row: dict) -> VideoPart:
        if self.is_old:
            return VideoPart(self._named_by_info("video_path", layout.OLD_VIDEOS, index, {"video_key": key}), 0.0)
        names = ("chunk_index", "file_index", "from_timestamp")
        chunk, file, begin = (row.get(f"videos/{key}/{name}") for name in names)
        if not isinstance(begin, (int, float)) or not math.isfinite(begin):
            raise ValueError(f"videos/{key}/from_timestamp is {begin!r}, and must be seconds")
        place = {"video_key": key, "chunk_index": chunk, "file_index": file}
        return VideoPart(self._named_by_info("video_path", layout.VIDEOS, index, place), float(begin))

    def _named_by_info(self, template_key: str, usual: str, index: int, place: dict[str, Any]) -> Path:
        """Return a file by info.json's template. Raises ValueError if it lies outside of the dataset."""
        numbers = {
            name: value if name == "video_key" else whole_number(name, value, 0, layout.MAX_ROWS)
            for name, value in place.items()
        }
        chunks_size = whole_number("chunks_size", self.info.get("chunks_size") or 1000, 1, layout.MAX_ROWS)
        numbers |= {"episode_index": index, "episode_chunk": index // chunks_size}
        template = str(self.info.get(template_key) or usual)
        if _LONG_NUMBER.search(template) or len(template) > _MAX_NAME:  # a field padded to a million digits
            raise ValueError(f"{template_key} of info.json is {template[:100]!r}, which gives no file name")
        name = template.format(**numbers)
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{template_key} of info.json gives {name[:100]!r}, which lies outside of the dataset")
        if len(name) > _MAX_NAME or not name.isprintable() or any(p.startswith(".") for p in Path(name).parts):
            raise ValueError(f"{template_key} of info.json gives {name[:100]!r}, which is no file name of a dataset")
        return self.path(name)

    # --- sentences and statistics -----------------------------------------------------------

    @cached_property
    def tasks(self) -> dict[int, str]:
        """Return the sentence of each task_index; empty if the dataset has no table of them."""
        file = self.path(layout.OLD_TASKS if self.is_old else layout.TASKS)
        if not file.is_file():
            return {}
        try:
            rows = self._json_lines(layout.OLD_TASKS) if self.is_old else self._task_rows(file)
            return {whole_number("task_index", row["task_index"], 0, layout.MAX_ROWS): str(row["task"]) for row in rows}
        except (LookupError, TypeError, ValueError) as error:
            if isinstance(error, DatasetError):
                raise
            raise DatasetError(file, f"it holds no column task_index with task ({error})", COPY_AGAIN) from error

    def _task_rows(self, file: Path) -> list[dict]:
        """Return rows of task_index and task; pandas writes task as a column, or as an index of another name."""
        import pyarrow as pa

        table = checked_read(file, lambda: self.parquet(file).read())
        texts = [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        column = "task" if "task" in texts else texts[0]
        return [{"task_index": row["task_index"], "task": row[column]} for row in table.to_pylist()]

    @cached_property
    def stats(self) -> dict[str, Any]:
        """Return meta/stats.json; {}: the dataset has none, or one per episode."""
        return self._json(layout.STATS) if self.path(layout.STATS).is_file() else {}

    # --- files ------------------------------------------------------------------------------

    def parquet(self, file: Path) -> pq.ParquetFile:
        """Open a parquet file for reading in parts. Raises DatasetError."""
        import pyarrow.parquet as pq

        table = checked_read(file, lambda: pq.ParquetFile(file, buffer_size=2**20))
        if table.metadata.num_rows > min(layout.MAX_ROWS, _ROWS_PER_BYTE * file.stat().st_size):
            raise DatasetError(file, f"it is damaged (it would have {table.metadata.num_rows} rows)", COPY_AGAIN)
        return table

    def _json(self, name: str) -> dict:
        try:
            content = read_json(self.path(name))
            if not isinstance(content, dict):
                raise ValueError(f"it holds a {type(content).__name__}, not an object")
            return content
        except FileNotFoundError as error:
            raise missing_file_error(self.path(name)) from error
        except ValueError as error:
            raise unreadable_file_error(self.path(name), f"it is not JSON ({error})") from error

    def _json_lines(self, name: str) -> list[dict]:
        try:
            text = read_text(self.path(name), MAX_JSON_BYTES)
            rows = [parse_json(line) for line in text.split("\n") if line.strip()]
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError("a line is no object")
            return rows
        except FileNotFoundError as error:
            raise missing_file_error(self.path(name)) from error
        except ValueError as error:
            raise unreadable_file_error(self.path(name), f"it is not JSON, line by line ({error})") from error


def missing_file_error(file: Path) -> DatasetError:
    """Return the error for a missing file."""
    return DatasetError(file, "the file is missing", COPY_AGAIN)


def unreadable_file_error(file: Path, cause: str) -> DatasetError:
    """Return the error for a file that cannot be read, or that is a Git LFS pointer."""
    with file.open("rb") as opened:
        is_pointer = opened.read(len(_LFS_POINTER)) == _LFS_POINTER
    if is_pointer:
        return DatasetError(
            file, "it is a pointer of Git LFS, not the file itself", "run `git lfs pull` in the dataset"
        )
    return DatasetError(file, cause, COPY_AGAIN)


def checked_read(file: Path, read: Any) -> Any:
    """Return the result of `read`, which reads a parquet file. Raises DatasetError."""
    import pyarrow as pa

    try:
        return read()
    except FileNotFoundError as error:
        raise missing_file_error(file) from error
    except (pa.ArrowException, OSError) as error:
        raise unreadable_file_error(file, f"it is damaged ({error})") from error


def dataset_digest(folder: Path | str) -> str:
    """Return a SHA-256 of the contents of meta/, and of the names and sizes of all other files. Raises OSError.

    Other data in the same folder gives another digest; the frames themselves are not read, which would take long.
    """
    folder = Path(folder)
    digest = hashlib.sha256()
    for name in _file_names(folder):
        size = (folder / name).stat().st_size
        content = _content_digest(folder / name) if name.startswith("meta/") and size <= _MAX_META_BYTES else ""
        digest.update(json.dumps([name, size, content]).encode())
    return digest.hexdigest()


def _content_digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _file_names(folder: Path) -> Iterator[str]:
    """Yield the files of a dataset, without those of Git and of caches."""
    for name in checksums.file_names(folder):
        if not any(part.startswith(".") for part in Path(name).parts):
            yield name


def _frame_rate(value: object) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= layout.MAX_SIZE:  # type: ignore[operator]
        raise ValueError(f"fps is {value!r}, and must be a number above 0 and at most {layout.MAX_SIZE}")
    return float(value)  # type: ignore[arg-type]


def _sentences(tasks: object) -> tuple[str, ...]:
    if tasks is None:
        return ()
    texts = [tasks] if isinstance(tasks, str) else tasks
    if not isinstance(texts, list) or not all(isinstance(task, str) for task in texts):
        raise ValueError(f"tasks is {tasks!r}, and must be a list of sentences")
    return tuple(texts)
