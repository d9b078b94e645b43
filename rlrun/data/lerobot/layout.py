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
MAX_SIZE = 16_384  # of an image's side, of a vector, and of the frame rate
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
        sizes = {key: _shape(key, spec) for key, spec in features.items() if key in images or key in (STATE, ACTION)}
        if not images:
            kinds = sorted({spec["dtype"] for spec in features.values()})
            raise DatasetError(
                path, f"no feature of dtype image (found {', '.join(kinds)})", "store frames as images, not as video"
            )
        shapes = {sizes[key] for key in images}
        height, width, channels = next(iter(shapes))
        if len(shapes) > 1 or channels != 3:
            raise DatasetError(path, f"image shapes {sorted(shapes)}", "give all cameras one [height, width, 3] shape")
        (num_proprio,), (num_actions,) = sizes[STATE], sizes[ACTION]
        names = features[ACTION]["names"]
        if not isinstance(names, list) or len(names) != num_actions:
            names = [f"action/{i}" for i in range(num_actions)]
        cameras = tuple(key.removeprefix(IMAGE_PREFIX) for key in images)
        fps = whole_number("fps", info["fps"], 1, MAX_SIZE)
        return cls(cameras, height, width, num_proprio, tuple(map(str, names)), fps)


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number of a dataset's description. Raises ValueError for anything else, or out of range."""
    is_whole = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not is_whole or value != int(value):  # type: ignore[call-overload]
        raise ValueError(f"{name} is {value!r}, and must be a whole number from {low} to {high}")
    return int(value)  # type: ignore[call-overload]


def _shape(key: str, spec: dict) -> tuple[int, ...]:
    return tuple(whole_number(f"a size of {key}", size, 1, MAX_SIZE) for size in spec["shape"])


def encode_png(image: np.ndarray) -> bytes:
    """Encode uint8 [H, W, 3] as PNG, with light compression: time matters more than disk space."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def decode_image(data: bytes, height: int, width: int) -> np.ndarray:
    """Decode PNG or JPEG to uint8 [height, width, 3].

    Raises ValueError for an image of another size, whose pixels are not decoded, and what Pillow raises for damage.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
        if image.size != (width, height):
            raise ValueError(f"it has {image.height} x {image.width} pixels, info.json says {height} x {width}")
        return np.asarray(image.convert("RGB"))
