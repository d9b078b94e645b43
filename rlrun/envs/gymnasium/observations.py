"""Decides which parts of a Gymnasium observation are cameras, proprioception and instruction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rlrun.envs.gymnasium.spec import GymnasiumConfig
from rlrun.envs.pictures import resized
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.notices import notice

SMALLEST = 8  # pixels a side of a picture that its shape alone does not give away
SMALLEST_GRID = 8  # of a picture of bytes that nobody has named
SMALLEST_SURE = 20  # pixels a side, below which bytes may be numbers of objects: named as state, they are so …
MOST_OBJECTS = 31  # … and not named at all, this is told if no byte of the first picture is larger
SMALLEST_GREY = 16  # likewise, in two dimensions
KNOWN = "uint8 [H, W, 3], [H, W, 1], [3, H, W], [1, H, W] or [H, W], or float [H, W, 3] or [3, H, W] of 0..1 or 0..255"

BYTE_LIMITS = (0, 0, 255, 255)  # least and greatest lower limit, and upper limit, of a space of pixels
FLOAT_LIMITS = ((0, 0, 1, 1), BYTE_LIMITS)
FLAT = "Box, Discrete, MultiBinary, MultiDiscrete, and Tuples of them"
WHOLE = ""  # the key of an observation that is not a Dict


@dataclass(frozen=True)
class Camera:
    """How to read the pictures of a space. Example: Camera("image", is_first=True, scale=255.0)."""

    key: str
    is_first: bool = False  # channels are the first dimension
    scale: float | None = None  # of float pictures, to 0..255; None: they are uint8

    def picture(self, seen: np.ndarray) -> np.ndarray:
        """Return uint8 [H, W, 3]. Raises ValueError if the picture is of another type or shape than its space."""
        seen = np.asarray(seen)
        if self.is_first and seen.ndim == 3:
            seen = np.moveaxis(seen, 0, -1)
        if seen.ndim == 2:
            seen = seen[:, :, None]
        if seen.ndim != 3 or seen.shape[2] not in (1, 3):
            raise ValueError(f"camera '{self.key}' gives an array of shape {list(seen.shape)}, which is no picture")
        if self.scale is not None:
            if not np.isfinite(seen).all():
                raise ValueError(f"camera '{self.key}' holds NaN or infinity")
            seen = np.rint(np.clip(seen * self.scale, 0, 255)).astype(np.uint8)
        elif seen.dtype != np.uint8:
            raise ValueError(f"camera '{self.key}' gives {seen.dtype}, and its space says uint8")
        return seen if seen.shape[2] == 3 else np.repeat(seen, 3, axis=2)


def camera_of(key: str, space: spaces.Space) -> Camera | None:
    """Return the camera of a space that is unambiguously one's; None: it is none."""
    if not isinstance(space, spaces.Box):
        return None
    shape = space.shape
    is_bytes = space.dtype == np.uint8
    if is_bytes and shape[2:] == (3,):
        return Camera(key)
    axis = _channel_axis(shape)
    sides = tuple(size for at, size in enumerate(shape) if at != axis)
    if len(sides) != 2 or min(sides) < (SMALLEST_GREY if axis is None else SMALLEST):
        return None
    limits = float(space.low.min()), float(space.low.max()), float(space.high.min()), float(space.high.max())
    if is_bytes and limits == BYTE_LIMITS:
        return Camera(key, is_first=axis == 0)
    is_colour = axis is not None and shape[axis] == 3  # one channel of floats may be a depth
    if space.dtype.kind == "f" and is_colour and limits in FLOAT_LIMITS:
        return Camera(key, is_first=axis == 0, scale=255.0 / limits[-1])
    return None


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the dimension of a picture that holds its 1 or 3 channels, the last or the first; None: it has none."""
    if len(shape) != 3:
        return None
    return next((axis for axis in (2, 0) if shape[axis] in (1, 3)), None)


def may_hold_pixels(space: spaces.Space) -> bool:
    """Return whether flattening might make numbers of pixels: of bytes in three dimensions, or of a picture's size."""
    if isinstance(space, spaces.Tuple):
        return any(may_hold_pixels(below) for below in space.spaces)
    if isinstance(space, spaces.Dict):
        return any(may_hold_pixels(below) for below in space.spaces.values())
    if holds_bytes(space) or camera_of("", space) is not None:
        return True
    sides = sorted(space.shape or ())
    return len(sides) > 1 and sides[-2] >= (SMALLEST_GREY if len(sides) == 2 else SMALLEST)


def holds_bytes(space: spaces.Space) -> bool:
    """Return whether the space consists of bytes in three or more dimensions: pixels, whatever their order."""
    if isinstance(space, spaces.Tuple):
        return any(holds_bytes(below) for below in space.spaces)
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 3


def is_small_grid(space: spaces.Space) -> bool:
    """Return whether the space has too few places for a picture: it may hold numbers of objects, as MiniGrid's does."""
    return isinstance(space, spaces.Box) and len(space.shape) > 1 and sorted(space.shape)[-2] < SMALLEST_GRID


def may_be_grid(space: spaces.Space) -> bool:
    """Return whether the space may be a grid of numbers although it has the places of a picture."""
    return is_small_grid(space) or (
        isinstance(space, spaces.Box) and len(space.shape) > 1 and max(space.shape) < SMALLEST_SURE
    )


def is_flat(space: spaces.Space) -> bool:
    """Return whether the space has a fixed number of numbers, which `spaces.flatten` gives."""
    if isinstance(space, spaces.Tuple):
        return all(map(is_flat, space.spaces))
    if isinstance(space, spaces.Dict):
        return all(map(is_flat, space.spaces.values()))
    return isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete))


class ObservationReader:
    """Reads single observations of one space.

    Keys are as configured, or guessed from the space: pictures of bytes are cameras, the only text is the instruction,
    all other numbers are proprioception; pictures of floats (`camera_spaces.KNOWN`) must be named. Raises RunError for
    a space without a fixed number of numbers, and if what may be a picture would become proprioception unnamed.
    """

    def __init__(self, space: spaces.Space, wanted: GymnasiumConfig, image_size: int):
        self._size = image_size
        self._leaves = dict(_leaves(space, WHOLE))
        self._cameras = self._chosen_cameras(wanted.image_keys, wanted.state_keys or ())
        self.image_keys = [camera.key for camera in self._cameras]
        texts = self._chosen("instruction_key", _listed(wanted.instruction_key), self._is_text)
        self.instruction_key = texts[0] if len(texts) == 1 else None
        rest = [key for key in self._leaves if key not in self.image_keys and key not in texts]
        self.state_keys = self._states(wanted.state_keys, rest, wanted.image_keys)
        self._doubted = {camera.key for camera in self._cameras if self._is_doubted(camera, wanted)}
        self.num_images = len(self.image_keys)  # N
        self.cameras = tuple(key or "image" for key in self.image_keys)  # N names
        self.num_proprio = sum(spaces.flatdim(self._leaves[key]) for key in self.state_keys)  # P
        self._no_images = np.zeros((0, image_size, image_size, 3), np.uint8)
        self._is_plain = self.state_keys == [WHOLE] and isinstance(space, spaces.Box) and len(space.shape) == 1
        is_guessed = None in (wanted.image_keys, wanted.state_keys, wanted.instruction_key)
        self.guess = self.describe() if is_guessed and isinstance(space, spaces.Dict) else ""

    def _chosen_cameras(self, named: list[str] | None, states: Sequence[str]) -> list[Camera]:
        """Return the named cameras, else those that may be used without their names. Raises RunError.

        states: keys that are named as state, and thus no cameras.
        """
        possible = [camera_of(key, space) for key, space in self._leaves.items()]
        cameras = {camera.key: camera for camera in possible if camera is not None}
        if named is None:
            return [camera for key, camera in cameras.items() if key not in states and self._is_sure(camera)]
        return [cameras[key] for key in self._chosen("image_keys", named, lambda key: key in cameras)]

    def _is_sure(self, camera: Camera) -> bool:
        """Return whether a camera may be used without its name: bytes up to 255, and no small grid of numbers."""
        space: Any = self._leaves[camera.key]  # a Box, as of every camera
        return camera.scale is None and not is_small_grid(space) and float(space.high.max()) == BYTE_LIMITS[-1]

    def _is_doubted(self, camera: Camera, wanted: GymnasiumConfig) -> bool:
        """Return whether a camera may be a grid of numbers, which only its first picture tells."""
        is_grid = may_be_grid(self._leaves[camera.key])
        return is_grid and wanted.image_keys is None and not wanted.is_observed_as_pixels and camera.scale is None

    def _look(self, pictures: Mapping[str, np.ndarray]) -> None:
        """Tell of small pictures whose bytes are those of a grid of objects; one that is black says nothing yet."""
        for key in sorted(self._doubted):
            most = int(pictures[key].max())
            if most:
                self._doubted.discard(key)
            if 0 < most <= MOST_OBJECTS:
                height, width = pictures[key].shape[:2]
                notice(
                    f"observation '{key}' is taken as a picture of {height} x {width}, and no byte of the first one is "
                    f"larger than {most}: if they are numbers of objects, name it in env.gymnasium.state_keys; if they "
                    "are colours, in env.gymnasium.image_keys"
                )

    def describe(self) -> str:
        """Describe the roles of the keys. Example: "image -> camera, state -> proprioception, task -> instruction"."""
        texts = _listed(self.instruction_key)
        parts = [(self.image_keys, "camera"), (self.state_keys, "proprioception"), (texts, "instruction")]
        mapped = [f"{', '.join(key or 'all of it' for key in keys)} -> {what}" for keys, what in parts if keys]
        left_out = set(self._leaves) - {key for keys, _ in parts for key in keys or ()}
        return ", ".join([*mapped, *(f"{key} -> left out" for key in sorted(left_out))])

    def _chosen(self, name: str, named: list[str] | None, is_fit: Any) -> list[str]:
        if named is None:
            return [key for key in self._leaves if is_fit(key)]
        for key in named:
            if key not in self._leaves or not is_fit(key):
                raise self._refused(name, key, f"a picture: {KNOWN}" if name == "image_keys" else "text")
        return named

    def _states(self, named: list[str] | None, rest: list[str], image_keys: list[str] | None) -> list[str]:
        """Return the keys of the proprioception: those named, else all the rest. Raises RunError for an unfit one."""
        if named is not None:
            for key in named:
                self._require_numbers(key)
            return named
        states = [key for key in rest if not self._is_text(key) and not (image_keys is not None and self._shows(key))]
        for key in states:
            if not is_flat(self._leaves[key]):
                raise self._no_state(key, "has no fixed number of numbers", f"rlrun flattens {FLAT}")
            if may_hold_pixels(self._leaves[key]):
                what = "may be a picture, and would be flattened into the proprioception"
                raise self._no_state(key, what, f"cameras are {KNOWN}")
        return states

    def _shows(self, key: str) -> bool:
        """Return whether a key is a camera's, so that it is left out if cameras are named and it is not."""
        return camera_of(key, self._leaves[key]) is not None

    def _require_numbers(self, key: str) -> None:
        """Raise RunError if a key that the user names as state holds no numbers, or a picture."""
        space = self._leaves.get(key)
        is_numbers = space is not None and is_flat(space)
        is_picture = space is not None and (holds_bytes(space) or self._shows(key)) and not may_be_grid(space)
        if not is_numbers or is_picture:
            raise self._refused("state_keys", key, "numbers that are no picture")

    def _no_state(self, key: str, what: str, known: str) -> RunError:
        return RunError(
            f"The observation's '{key}' {what}." if key else f"The observation {what}.",
            key="env.gymnasium.state_keys",
            value=key,
            cause=f"It is {self._leaves[key]}; {known}.",
            remedy="Name the cameras in env.gymnasium.image_keys and the state in env.gymnasium.state_keys (['']: the "
            "whole observation), or wrap the environment so that it has one of these spaces.",
            exit_status=ExitStatus.bad_config,
        )

    def _is_text(self, key: str) -> bool:
        return isinstance(self._leaves[key], spaces.Text)

    def _refused(self, name: str, key: str, expected: str) -> RunError:
        known = ", ".join(f"{key or 'observation'} ({space})" for key, space in self._leaves.items())
        return RunError(
            f"The observation has no '{key}' that is {expected}.",
            key=f"env.gymnasium.{name}",
            value=key,
            cause=f"It has {known}.",
            remedy="Name one of these.",
            exit_status=ExitStatus.bad_config,
        )

    def images(self, observation: Any) -> np.ndarray:
        """Return uint8 [N, S, S, 3] of a single observation, with S = env.image_size."""
        if not self.image_keys:
            return self._no_images
        pictures = [camera.picture(_at(observation, camera.key)) for camera in self._cameras]
        if self._doubted:
            self._look(dict(zip(self.image_keys, pictures, strict=True)))
        return np.stack([resized(picture, self._size, self._size) for picture in pictures])

    def proprio(self, observation: Any) -> np.ndarray:
        """Return float [P] of a single observation; the rows convert it to float32."""
        if self._is_plain:
            return np.asarray(observation)
        if not self.state_keys:
            return np.zeros(0, np.float32)
        parts = [spaces.flatten(self._leaves[key], _at(observation, key)) for key in self.state_keys]
        return np.concatenate([np.asarray(part).reshape(-1) for part in parts])

    def instruction(self, observation: Any) -> str | None:
        """Return the instruction in the observation; None if it has none."""
        return None if self.instruction_key is None else str(_at(observation, self.instruction_key))


def _listed(key: str | None) -> list[str] | None:
    return None if key is None else [key]


def _leaves(space: spaces.Space, key: str) -> Iterator[tuple[str, spaces.Space]]:
    """Yield every space below nested Dicts, with its path."""
    if isinstance(space, spaces.Dict):
        for name, below in space.spaces.items():
            yield from _leaves(below, f"{key}.{name}" if key else name)
    else:
        yield key, space


def _at(observation: Any, key: str) -> Any:
    """Return a nested value. A name itself may contain a dot, such as LeRobot's "observation.state"."""
    if key == WHOLE:
        return observation
    if key in observation:
        return observation[key]
    for name, below in observation.items():
        if isinstance(below, Mapping) and key.startswith(f"{name}."):
            return _at(below, key[len(name) + 1 :])
    raise KeyError(key)
