"""Names, versions and limits of LeRobot's layouts, and the error of a dataset that cannot be used.

v3.0, which rlrun also writes, images embedded as PNG:

    meta/info.json                              features, counts, frame rate, path templates
    meta/stats.json                             per feature: min max mean std count q01 q10 q50 q90 q99
    meta/tasks.parquet                          instruction -> task_index
    meta/episodes/chunk-000/file-000.parquet    one row per episode: where its frames are, seed, success
    data/chunk-000/file-000.parquet             one row per frame, one row group per episode
    videos/CAMERA/chunk-000/file-000.mp4        the frames of many episodes, one after another

v2.0 and v2.1:

    meta/info.json, meta/tasks.jsonl, meta/episodes.jsonl
    data/chunk-000/episode_000000.parquet
    videos/chunk-000/CAMERA/episode_000000.mp4

`seed` and `success` are columns of ours in the episode table; LeRobot's reader carries them along.
"""

from __future__ import annotations

from pathlib import Path

VERSION = "v3.0"
OLD_VERSIONS = ("v2.0", "v2.1")
INFO = "meta/info.json"
STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
OLD_TASKS = "meta/tasks.jsonl"
OLD_EPISODES = "meta/episodes.jsonl"
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES = "meta/episodes/" + FILE
DATA = "data/" + FILE
VIDEOS = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
OLD_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
OLD_VIDEOS = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
FILES_PER_CHUNK = 1000
FILE_MEGABYTES = 100  # size at which a data file is closed and the next one begins
IMAGE_PREFIX = "observation.images."
STATE = "observation.state"
ACTION = "action"
MAX_SIZE = 16_384  # of an image's side, of a vector, and of the frame rate
MAX_ROWS = 100_000_000  # of a file; compressed, absurd numbers of equal rows take no space
COPY_AGAIN = "copy the dataset again from an undamaged source"
RECORD_AGAIN = "record the dataset again"
INDEX_COLUMNS = {  # LeRobot's own columns, in its order
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}


class DatasetError(ValueError):
    """A dataset cannot be used; holds the file, the cause and a remedy. Can be pickled."""

    def __init__(self, path: Path | str, cause: str, remedy: str):
        super().__init__(str(path), cause, remedy)
        self.path, self.cause, self.remedy = str(path), cause, remedy

    def __str__(self) -> str:
        return f"dataset file {self.path}: {self.cause}. Remedy: {self.remedy}"


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number of a dataset's description. Raises ValueError for anything else, or out of range."""
    is_whole = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not is_whole or value != int(value):  # type: ignore[call-overload]
        raise ValueError(f"{name} is {value!r}, and must be a whole number from {low} to {high}")
    return int(value)  # type: ignore[call-overload]
