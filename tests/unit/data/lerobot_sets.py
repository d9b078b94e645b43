"""Tiny LeRobot datasets as other programs write them, of every layout: 3 episodes of 4, 5 and 6 frames, 2 actions."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

TOP, WRIST = "observation.images.top", "observation.images.wrist"
TASKS = ("open the drawer", "close the drawer")
FPS = 10


@dataclass
class Made:
    """A dataset before it is written; tests change it."""

    lengths: Sequence[int] = (4, 5, 6)
    pictures: dict[str, np.ndarray] = field(default_factory=dict)  # uint8 [F, H, W, 3], stored as PNG
    videos: dict[str, np.ndarray] = field(default_factory=dict)  # uint8 [F, H, W, 3]
    columns: dict[str, np.ndarray] = field(default_factory=dict)  # [F, D] or [F]
    features: dict[str, dict] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    stats: dict[str, Any] | None = None
    tasks: dict[int, str] = field(default_factory=lambda: dict(enumerate(TASKS)))
    episodes: list[dict] = field(default_factory=list)
    cells: dict[str, list] = field(default_factory=dict)  # of a camera, in place of its PNG bytes

    @property
    def num_frames(self) -> int:
        return sum(self.lengths)


def drawn(number: int, size: tuple[int, int] = (16, 24)) -> np.ndarray:
    """A picture whose brightness tells its number, also after a video's compression: uint8 [H, W, 3]."""
    picture = np.full((*size, 3), 8 + 15 * number, np.uint8)
    picture[:, size[1] // 2 :, 1] = 255 - 15 * number
    return picture


def made(lengths: Sequence[int] = (4, 5, 6), cameras: Sequence[str] = (TOP,), videos: Sequence[str] = ()) -> Made:
    """All frames of all episodes; frame i of the dataset shows drawn(i), and its actions are (i, -i)."""
    number = sum(lengths)
    everything = np.stack([drawn(i) for i in range(number)])
    frame = np.arange(number)
    made = Made(lengths, dict.fromkeys(cameras, everything), dict.fromkeys(videos, everything))
    made.columns = {
        "observation.state": np.stack([frame, frame**2, np.ones(number)], 1).astype(np.float32),
        "action": np.stack([frame, -frame], 1).astype(np.float32),
        "frame_index": np.concatenate([np.arange(length) for length in lengths]),
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "index": frame,
        "task_index": np.repeat(np.arange(len(lengths)) % 2, lengths),
    }
    made.columns["timestamp"] = (made.columns["frame_index"] / FPS).astype(np.float32)
    for kind, keys in (("image", cameras), ("video", videos)):
        for key in keys:
            made.features[key] = {"dtype": kind, "shape": [16, 24, 3], "names": ["height", "width", "channels"]}
    made.features["observation.state"] = {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]}
    made.features["action"] = {"dtype": "float32", "shape": [2], "names": None}
    for key in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        made.features[key] = {"dtype": "float32" if key == "timestamp" else "int64", "shape": [1], "names": None}
    made.episodes = [{"episode_index": i, "tasks": [TASKS[i % 2]], "length": n} for i, n in enumerate(lengths)]
    made.info = {"fps": FPS, "robot_type": "arm", "total_episodes": len(lengths), "chunks_size": 1000}
    return made


def written(folder: Path, made: Made, version: str = "v3.0") -> Path:
    """Write the dataset in a layout."""
    (folder / "meta").mkdir(parents=True)
    info = made.info | {"codebase_version": version, "features": made.features}
    (folder / "meta/info.json").write_text(json.dumps(info))
    if made.stats is not None:
        (folder / "meta/stats.json").write_text(json.dumps(made.stats))
    (_new if version == "v3.0" else _old)(folder, made)
    return folder


def _new(folder: Path, made: Made) -> None:
    begins = np.cumsum([0, *made.lengths])
    rows = [dict(row) for row in made.episodes]
    for row, begin in zip(rows, begins, strict=False):
        row.update({"data/chunk_index": 0, "data/file_index": 0, "dataset_from_index": int(begin)})
        for key in made.videos:
            place = {"chunk_index": 0, "file_index": 0, "from_timestamp": float(begin) / FPS}
            row.update({f"videos/{key}/{name}": value for name, value in place.items()})
    put(folder / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(rows))
    if made.tasks:
        table = pa.table({"task_index": list(made.tasks), "__index_level_0__": list(made.tasks.values())})
        put(folder / "meta/tasks.parquet", table)  # as pandas writes an index without a name
    put(folder / "data/chunk-000/file-000.parquet", table_of(made, slice(None)), row_group_size=4)
    for key, frames in made.videos.items():
        write_video(folder / f"videos/{key}/chunk-000/file-000.mp4", frames)


def _old(folder: Path, made: Made) -> None:
    lines(folder / "meta/episodes.jsonl", made.episodes)
    lines(folder / "meta/tasks.jsonl", [{"task_index": i, "task": task} for i, task in made.tasks.items()])
    for row in made.episodes:
        index = row["episode_index"]
        frames = np.flatnonzero(made.columns["episode_index"] == index)
        part = slice(frames[0], frames[-1] + 1)
        put(folder / f"data/chunk-000/episode_{index:06d}.parquet", table_of(made, part))
        for key, pictures in made.videos.items():
            write_video(folder / f"videos/chunk-000/{key}/episode_{index:06d}.mp4", pictures[part])


def table_of(made: Made, part: slice) -> pa.Table:
    """The rows of a data file."""
    arrays = {k: pa.array(list(v[part])) if v.ndim > 1 else pa.array(v[part]) for k, v in made.columns.items()}
    for key, pictures in made.pictures.items():
        cells = made.cells.get(key) or [{"bytes": encoded(picture), "path": None} for picture in pictures]
        arrays[key] = pa.array(cells[part])
    return pa.table(arrays)


def put(file: Path, table: pa.Table, **options: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, **options)


def lines(file: Path, rows: list[dict]) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def encoded(picture: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, kind)
    return buffer.getvalue()


def write_video(
    file: Path, frames: Sequence[np.ndarray], codec: str = "libx264", fps: int = FPS, **options: str
) -> None:
    """Write frames, uint8 [H, W, 3] with even sides. options: of the encoder, such as g="2"."""
    import av

    file.parent.mkdir(parents=True, exist_ok=True)
    scheduling = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        with av.open(str(file), "w") as container:
            stream = container.add_stream(codec, rate=fps, options=options)
            stream.height, stream.width = frames[0].shape[:2]
            stream.pix_fmt = "yuv420p"
            for picture in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
    finally:
        # SVT-AV1 gives the calling thread real-time priority where it may, and all that it starts later inherits it.
        os.sched_setscheduler(0, *scheduling)
