"""LeRobot's layouts (names, versions, limits), the features of a dataset by info.json, and the error DatasetError.

v3.0, which rlrun also writes, with images embedded as PNG:

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

`seed` and `success` are rlrun's columns of the episode table; LeRobot's reader keeps them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlrun.config.schema import DemoKeysConfig


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
MAX_ROWS = 100_000_000  # of a file; any number of equal rows takes little space when compressed
COPY_AGAIN = "copy the dataset again from an undamaged source"
COPY_LINKED = "copy the dataset with what its links lead to: cp -rL"
RECORD_AGAIN = "record the dataset again"
FRAME_REWARD = "next.reward"  # features of LeRobot's datasets with rewards
FRAME_DONE = "next.done"
FRAME_SUCCESS = "next.success"
FRAME_TRUNCATED = "next.truncated"  # a time limit ended the episode; next.done is true there as well
INDEX_COLUMNS = {  # LeRobot's columns, in its order
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
STATE_NAMES = (STATE, "state")  # tried in this order if demos.keys names none
ACTION_NAMES = (ACTION, "actions")
_NO_COLOUR_WORDS = {"depth", "seg", "segmentation"}  # in a key: its channels are not colours
_AXES = {"c": "c", "h": "h", "w": "w", "channel": "c", "channels": "c", "rgb": "c", "height": "h", "width": "w"}


class DatasetError(ValueError):
    """A dataset cannot be used; holds the file, the cause and a remedy. Can be pickled."""

    def __init__(self, path: Path | str, cause: str, remedy: str):
        super().__init__(str(path), cause, remedy)
        self.path = str(path)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"dataset file {self.path}: {self.cause}. Remedy: {self.remedy}"


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """Return an integer of a dataset's description. Raises ValueError for other values, or out of range."""
    is_whole = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not is_whole or value != int(value):  # type: ignore[call-overload]
        raise ValueError(f"{name} is {value!r}, and must be a whole number from {low} to {high}")
    return int(value)  # type: ignore[call-overload]


@dataclass(frozen=True)
class DemoFeatures:
    """The features of every frame of a dataset.

    Example: DemoFeatures(("zed_link",), ((64, 64),), num_proprio=61, num_actions=8, fps=30.0)
    """

    cameras: tuple[str, ...]  # N names, without "observation.images."
    camera_sizes: tuple[tuple[int, int], ...]  # height and width of each, in pixels
    num_proprio: int  # P; 0: the dataset has no state
    num_actions: int  # A
    fps: float  # control steps per second
    proprio_names: tuple[str, ...] = ()  # P names; (): the dataset names none
    action_names: tuple[str, ...] = ()  # A names; (): the dataset names none
    has_rewards: bool = False  # next.reward and next.done, which tells a terminated episode from one cut off

    @property
    def reward_columns(self) -> dict[str, str]:
        """Return the types of the columns of rewards; {}: it has none."""
        return {FRAME_REWARD: "float32", FRAME_DONE: "bool"} if self.has_rewards else {}

    @property
    def image_keys(self) -> tuple[str, ...]:
        """Return the names of the cameras' features, as rlrun writes them."""
        return tuple(IMAGE_PREFIX + camera for camera in self.cameras)

    @property
    def vectors(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Return the sizes and names of the state, if there is one, and of the actions."""
        state = {STATE: (self.num_proprio, self.proprio_names)} if self.num_proprio else {}
        return state | {ACTION: (self.num_actions, self.action_names)}

    def to_info(self) -> dict[str, dict]:
        """Return the `features` of info.json."""
        axes = ["height", "width", "channels"]
        features: dict[str, dict] = {
            key: {"dtype": "image", "shape": [*size, 3], "names": axes}
            for key, size in zip(self.image_keys, self.camera_sizes, strict=True)
        }
        for key, (size, names) in self.vectors.items():
            features[key] = {"dtype": "float32", "shape": [size], "names": list(names) or None}
        numbers = self.reward_columns | INDEX_COLUMNS
        return features | {k: {"dtype": kind, "shape": [1], "names": None} for k, kind in numbers.items()}


@dataclass(frozen=True)
class Camera:
    """One camera of a dataset. Example: Camera("observation.images.top", "top", is_video=True)."""

    key: str  # name of its feature
    name: str  # the same without "observation.images."
    is_video: bool


@dataclass(frozen=True)
class Vector:
    """The state or the actions of a dataset: one feature, or several that are joined in this order.

    Example: Vector(("action.arm", "action.gripper"), (6, 1), names=())
    """

    keys: tuple[str, ...]
    sizes: tuple[int, ...]  # numbers of each feature
    names: tuple[str, ...]  # of all numbers; (): the dataset names none

    @property
    def size(self) -> int:
        """Return how many numbers it has."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Roles:
    """Features used by imitation, and sentences on those that are not used."""

    state: Vector | None
    action: Vector
    cameras: tuple[Camera, ...]
    left_out: tuple[str, ...]


def find_roles(features: dict[str, Any], keys: DemoKeysConfig, cameras: Sequence[str] | None, path: Path) -> Roles:
    """Return the roles of info.json's features.

    keys: demos.keys. cameras: names of the cameras to take, in this order; None: all. path: the file that errors name.
    Raises DatasetError, and LookupError, TypeError, AttributeError or ValueError for a description of another form.
    """
    state = _named_vector(features, "state", keys.state, STATE_NAMES, path)
    action = _named_vector(features, "action", keys.action, ACTION_NAMES, path)
    if action is None:
        cause = f"no feature is called {' or '.join(ACTION_NAMES)}; it has {_listing(features)}"
        raise DatasetError(path, cause, _remedy_without_actions(features))
    chosen, left_out = _find_cameras(features, keys.images, path)
    if cameras is not None:
        chosen = tuple(_camera_by_name(chosen, name, path) for name in cameras)
    return Roles(state, action, chosen, left_out)


def _listing(features: dict[str, Any]) -> str:
    """Return the features except index columns, with their types."""
    shown = [f"{k} ({s['dtype']} {list(s['shape'])})" for k, s in features.items() if k not in INDEX_COLUMNS]
    return ", ".join(shown) or "no features"


def _remedy_without_actions(features: dict[str, Any]) -> str:
    """Return how to name the actions, and the state, with the features that by their names are parts of them."""
    if len(_parts(features, ACTION)) < 2:
        return "name the feature that holds the actions: demos.keys.action=FEATURE"
    keys = f"demos.keys.action=[{','.join(_parts(features, ACTION))}]"
    if not any(name in features for name in STATE_NAMES) and _parts(features, STATE):
        keys += f" demos.keys.state=[{','.join(_parts(features, STATE))}]"
    return f"name the features that hold them, in the world's order: {keys}"


def _parts(features: dict[str, Any], prefix: str) -> list[str]:
    return [key for key, spec in features.items() if key.startswith(prefix) and _is_vector(spec)]


def _is_vector(spec: dict[str, Any]) -> bool:
    """Return whether a feature is one vector of numbers; its shape may have further axes of length 1."""
    return spec["dtype"] not in ("image", "video", "string") and sum(size != 1 for size in spec["shape"]) <= 1


def _named_vector(
    features: dict[str, Any], role: str, named: str | Sequence[str] | None, usual: tuple[str, ...], path: Path
) -> Vector | None:
    """Return the vector of a role; None: nothing is named, and no usual feature is there. named: demos.keys."""
    keys = [key for key in usual if key in features][:1]
    if named is not None:
        keys = [named] if isinstance(named, str) else list(named)
    sizes: list[int] = []
    names: list[str] = []
    for key in keys:
        size, own_names = _part(features, role, key, path)
        sizes.append(size)
        names += own_names
    return Vector(tuple(keys), tuple(sizes), tuple(names) if len(names) == sum(sizes) else ()) if keys else None


def _part(features: dict[str, Any], role: str, key: str, path: Path) -> tuple[int, tuple[str, ...]]:
    """Return how many numbers a feature has, and their names. Raises DatasetError if it is no vector of numbers."""
    if key not in features:
        cause = f"demos.keys.{role} is {key}, and there is no such feature; it has {_listing(features)}"
        raise DatasetError(path, cause, f"name one of these in demos.keys.{role}, or several as a list")
    spec = features[key]
    sizes = [whole_number(f"a size of {key}", size, 1, MAX_SIZE) for size in spec["shape"]]
    if not _is_vector(spec):
        cause = f"{key} is {spec['dtype']} {sizes}, and must be one vector of numbers; it has {_listing(features)}"
        raise DatasetError(path, cause, f"name another feature in demos.keys.{role}")
    size = math.prod(sizes)
    return size, read_names(spec.get("names"), size)


def read_names(names: Any, size: int) -> tuple[str, ...]:
    """Return the names of a vector's numbers from any of the forms in use; () if there are none, or too few or many.

    Forms: null, a list, {"motors": a list}, {"left": …, "right": …}, a list of lists, {"x": 0, "y": 1}.
    """
    pairs = list(_flatten_names(names, ""))
    if isinstance(names, dict) and names and all(type(place_of_name) is int for place_of_name in names.values()):
        pairs = [("", str(key)) for key in sorted(names, key=lambda key: names[key])]
    result = tuple(name for _, name in pairs)
    if len(set(result)) < len(result):  # as of two arms with equal joints
        result = tuple(f"{place}{name}" for place, name in pairs)
    return result if len(result) == size else ()


def _flatten_names(names: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield (place in the tree, name), in order."""
    if isinstance(names, dict):
        for key, below in names.items():
            yield from _flatten_names(below, f"{place}{key}/")
    elif isinstance(names, (list, tuple)):
        for below in names:
            yield from _flatten_names(below, place)
    elif names is not None:
        yield place, str(names)


def _find_cameras(
    features: dict[str, Any], named: Sequence[str] | None, path: Path
) -> tuple[tuple[Camera, ...], tuple[str, ...]]:
    """Return the cameras, and sentences on pictures that are not used."""
    pictures = {key: spec for key, spec in features.items() if spec["dtype"] in ("image", "video")}
    reasons = {key: _reason_to_omit(key, spec, named) for key, spec in pictures.items()}
    left_out = {key: f"{key} is left out: {reason}." for key, reason in reasons.items() if reason}
    for key in named or ():
        if key not in pictures or key in left_out:
            cause = left_out.get(key) or f"there is no such feature of pictures; it has {_listing(features)}"
            raise DatasetError(
                path, f"demos.keys.images names {key}: {cause}", "name features of colour pictures there"
            )
    taken = list(named) if named is not None else [key for key in pictures if key not in left_out]
    names = _camera_names(taken)
    cameras = tuple(Camera(key, names[key], pictures[key]["dtype"] == "video") for key in taken)
    return cameras, tuple(left_out.values())


def _camera_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the name of each camera: its key without the usual prefix, if no other camera has the same name then."""
    short = {key: key.removeprefix(IMAGE_PREFIX) for key in keys}
    times = Counter(short[key] for key in keys)
    return {key: name if times[name] == 1 else key for key, name in short.items()}


def _reason_to_omit(key: str, spec: dict[str, Any], named: Sequence[str] | None) -> str | None:
    """Return the reason to omit the pictures of a feature; None: they are used. named: demos.keys.images."""
    fault = _camera_fault(key, spec, is_named=named is not None)
    if fault is None and named is not None and key not in named:
        return "demos.keys.images does not name it"
    return fault


def _camera_fault(key: str, spec: dict[str, Any], is_named: bool) -> str | None:
    """Return the reason why a feature is not a colour camera; None: it is one."""
    channels = _channels(key, spec)
    if channels not in (3, 4):
        return f"it has {channels} channel{'s' if channels > 1 else ''}, no colours"
    info = spec.get("info") or spec.get("video_info") or {}
    if any(str(name).endswith("is_depth_map") and value is True for name, value in info.items()):
        return "info.json calls it a depth map"
    word = next((word for word in re.split(r"[._/\-]", key.lower()) if word in _NO_COLOUR_WORDS), None)
    if word and not is_named:
        return f"by its name it shows {word}, no colours; demos.keys.images takes it all the same"
    return None


def num_pixels(spec: dict[str, Any]) -> int:
    """Return the pixels of a colour camera's pictures, by a feature that `find_roles` accepted."""
    return math.prod(spec["shape"]) // _channels("", spec)


def _channels(key: str, spec: dict[str, Any]) -> int:
    """Return the number of channels: by the names of the axes, else the axis of size 1, 3 or 4."""
    shape = [whole_number(f"a size of {key}", size, 1, MAX_SIZE) for size in spec["shape"]]
    if len(shape) == 2:
        return 1
    if len(shape) != 3:
        raise ValueError(f"{key} has the shape {shape}, and pictures have [height, width, channels]")
    names = spec.get("names")
    axes = [_AXES.get(str(name).lower()) for name in names] if isinstance(names, (list, tuple)) else []
    if axes.count("c") == 1 and len(axes) == 3 and shape[axes.index("c")] <= 4:
        return shape[axes.index("c")]
    return next((shape[axis] for axis in (2, 0) if shape[axis] in (1, 3, 4)), shape[2])


def _camera_by_name(cameras: Sequence[Camera], name: str, path: Path) -> Camera:
    for camera in cameras:
        if name in (camera.name, camera.key):
            return camera
    known = ", ".join(camera.name for camera in cameras) or "none"
    raise DatasetError(path, f"it has no camera {name}; its cameras: {known}", "name its cameras in demos.keys.images")
