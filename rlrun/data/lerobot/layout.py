"""Files, features and columns of the LeRobot layout v3.0, images embedded as PNG.

    meta/info.json                              features, counts, frame rate, path templates
    meta/stats.json                             per feature: min max mean std count q01 q10 q50 q90 q99
    meta/tasks.parquet                          instruction -> task_index
    meta/episodes/chunk-000/file-000.parquet    one row per episode: where its frames are, seed, success
    data/chunk-000/file-000.parquet             one row per frame, one row group per episode

`seed` and `success` are columns of ours in the episode table; LeRobot's reader carries them along.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VERSION = "v3.0"
INFO = "meta/info.json"
STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES = "meta/episodes/" + FILE
DATA = "data/" + FILE
FILES_PER_CHUNK = 1000
FILE_MEGABYTES = 100  # size at which a data file is closed and the next one begins
IMAGE_PREFIX = "observation.images."
STATE = "observation.state"
ACTION = "action"
RECORD_AGAIN = "record the dataset again, or copy it again from an undamaged source"
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


@dataclass(frozen=True)
class DemoFeatures:
    """The features of every frame of a dataset.

    Example: DemoFeatures(("zed_link",), 64, 64, num_proprio=61, action_names=("arm_right/0", …), fps=30)
    """

    cameras: tuple[str, ...]
    height: int  # pixels
    width: int
    num_proprio: int  # P
    action_names: tuple[str, ...]  # A names
    fps: int  # control steps per second

    @property
    def image_keys(self) -> tuple[str, ...]:
        return tuple(IMAGE_PREFIX + camera for camera in self.cameras)

    def to_info(self) -> dict[str, dict]:
        """Return the `features` of info.json."""
        image = {"dtype": "image", "shape": [self.height, self.width, 3], "names": ["height", "width", "channels"]}
        proprio_names = [f"proprio/{i}" for i in range(self.num_proprio)]
        vectors = {STATE: proprio_names, ACTION: list(self.action_names)}
        features = {key: dict(image) for key in self.image_keys}
        features |= {key: {"dtype": "float32", "shape": [len(n)], "names": n} for key, n in vectors.items()}
        return features | {key: {"dtype": kind, "shape": [1], "names": None} for key, kind in INDEX_COLUMNS.items()}

    @classmethod
    def from_info(cls, info: dict, path: Path) -> DemoFeatures:
        """Read info.json; `path` is named in the error. Raises DatasetError."""
        version = str(info.get("codebase_version"))
        if version != VERSION:
            raise DatasetError(
                path, f"layout version {version}, rlrun reads {VERSION}", "convert it with LeRobot's own v3.0 converter"
            )
        features = info["features"]
        images = {key: spec for key, spec in features.items() if spec["dtype"] == "image"}
        if not images:
            kinds = sorted({spec["dtype"] for spec in features.values()})
            raise DatasetError(
                path, f"no feature of dtype image (found {', '.join(kinds)})", "store frames as images, not as video"
            )
        shapes = {tuple(spec["shape"]) for spec in images.values()}
        height, width, channels = next(iter(shapes))
        if len(shapes) > 1 or channels != 3:
            raise DatasetError(path, f"image shapes {sorted(shapes)}", "give all cameras one [height, width, 3] shape")
        (num_proprio,), (num_actions,) = features[STATE]["shape"], features[ACTION]["shape"]
        names = features[ACTION]["names"]
        if not isinstance(names, list) or len(names) != num_actions:
            names = [f"action/{i}" for i in range(num_actions)]
        cameras = tuple(key.removeprefix(IMAGE_PREFIX) for key in images)
        return cls(cameras, height, width, num_proprio, tuple(names), int(info["fps"]))


def encode_png(image: np.ndarray) -> bytes:
    """Encode uint8 [H, W, 3] as PNG, with light compression: time matters more than disk space."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def decode_png(data: bytes) -> np.ndarray:
    """Decode PNG to uint8 [H, W, 3]. Raises OSError if the bytes are not a complete image."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
