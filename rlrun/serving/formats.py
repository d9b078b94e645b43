"""Contents of served messages: openpi's names of entries, those of simulators, and checked arrays and images.

A request of openpi's clients has observation/image, observation/wrist_image, observation/state and prompt; its answer
has actions. Shape legend: B rows, C control steps, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.config.simulator_spec import WRIST, simulator_spec
from rlrun.edges.frames import Frames
from rlrun.envs.pictures import resized
from rlrun.serving.wire import WireError

MAX_PIXELS = 4096  # per side of a camera image
MAX_ROWS = 256
_CAMERA_PIXELS = 2048**2  # of a picture that any camera may send
_MOST_SCALING = 16  # pixels of a larger picture for each pixel of the policy's
STATE = "observation/state"
PROMPT = "prompt"
ACTIONS = "actions"
IMAGES = ("observation/image", "observation/wrist_image")  # of two cameras; camera_places says of which


def most_pixels(size: int) -> int:
    """Return the maximum pixels that a file may declare for a policy's picture [S, S]. size: S."""
    return max(_CAMERA_PIXELS, _MOST_SCALING * size**2)


def read_numbers(request: Mapping[Any, Any], key: str) -> np.ndarray:
    """Return an entry of numbers, [values] or [B, values], which may be NaN or infinite. Raises WireError."""
    value = request.get(key)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or value.ndim not in (1, 2):
        given_type = (
            f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else "missing or not an array"
        )
        raise WireError(f"{key} is {given_type}, expected numbers [(rows,) values]")
    if value.ndim == 2 and not 1 <= len(value) <= MAX_ROWS:
        raise WireError(f"{key} has {len(value)} rows, expected 1 to {MAX_ROWS}")
    return value


def require_finite(value: np.ndarray, key: str) -> None:
    """Raise WireError for NaN and infinity; for entries that the policy reads."""
    if not np.isfinite(value).all():
        raise WireError(f"{key} holds NaN or infinity")


def read_images(request: Mapping[Any, Any], key: str, size: int) -> np.ndarray:
    """Return an entry uint8 [(B,) H, W, 3 or 4] as uint8 [B, S, S, 3], by area means. size: S. Raises WireError."""
    pixels = request.get(key)
    if not isinstance(pixels, np.ndarray):
        raise WireError(f"the observation lacks the image {key}")
    pixels = pixels[None] if pixels.ndim == 3 else pixels
    is_picture = pixels.ndim == 4 and pixels.shape[3] in (3, 4) and min(pixels.shape[1:3]) >= 1
    if pixels.dtype != np.uint8 or not is_picture or max(pixels.shape[1:3]) > MAX_PIXELS:
        given_type = f"{pixels.dtype} {list(pixels.shape)}"
        raise WireError(f"{key} is {given_type}, expected uint8 [(rows,) height, width, 3 or 4]")
    if not 1 <= len(pixels) <= MAX_ROWS:
        raise WireError(f"{key} has {len(pixels)} rows, expected 1 to {MAX_ROWS}")
    return np.stack([resized(np.ascontiguousarray(picture[:, :, :3]), size, size) for picture in pixels])


class OpenpiNames:
    """openpi's names of the entries of a request. A camera has two: by camera_places, and `observation/<its name>`.

    Example: OpenpiNames({"zed_link": "robot_r1::…::rgb"}, "robot_r1::proprio", ["observation/image"]) takes the entries
    observation/image or observation/zed_link, observation/state and prompt.
    """

    def __init__(self, cameras: Mapping[str, str], state: str | None, places: Sequence[str]):
        """cameras: their names -> their keys in the wire, in order. state: its key; None: there is no state.

        places: the cameras' names by camera_places, in the same order.
        """
        self.cameras = dict(cameras)
        self.state = state
        self.names_by_key: dict[str, list[str]] = {}  # key in the wire -> names of openpi's
        for (camera, key), place in zip(cameras.items(), places, strict=True):
            self.names_by_key[key] = [place, f"observation/{camera}"]
        if state is not None:
            self.names_by_key[state] = [STATE]

    def other_names(self, key: str) -> list[str]:
        """Return openpi's names of an entry, other than its key."""
        return [name for name in self.names_by_key[key] if name != key]

    def translate(self, request: Mapping[Any, Any]) -> dict[Any, Any] | None:
        """Return the request with the wire's keys; None if it has none of openpi's names.

        Raises WireError if an entry is missing.
        """
        known = {name for names in self.names_by_key.values() for name in names}
        if not known & set(request):
            return None
        translated = {key: value for key, value in request.items() if key not in known}
        for key, names in self.names_by_key.items():
            given = next((name for name in names if name in request), None)
            if given is None:
                raise WireError(f"the observation lacks {' or '.join(names)}")
            translated[key] = request[given]
        return translated


def read_prompts(request: Mapping[Any, Any], default: str | None, num_rows: int) -> tuple[str, ...]:
    """Return the instruction of each row: the request's prompt, else the default. Raises WireError without both."""
    prompt = request.get(PROMPT, default)
    given: Sequence[Any] = prompt if isinstance(prompt, (list, tuple)) else [prompt] * num_rows
    if len(given) != num_rows or not all(isinstance(text, str) for text in given):
        raise WireError(f"{PROMPT} is {prompt!r:.100}, expected a sentence, or one for each of {num_rows} rows")
    return tuple(given)


class Wire(Protocol):
    """Conversion between the messages of clients and rlrun's. `names` translates requests of openpi's clients."""

    names: OpenpiNames
    instruction: str | None  # for requests without a prompt; None: they need one
    num_proprio: int  # P; 0: the policy takes none
    num_client_actions: int  # dimensions of an action that a client gets

    def is_batched(self, request: Mapping[Any, Any]) -> bool:
        """Return whether an observation has a leading dimension of rows. Raises WireError."""

    def frames(self, request: Mapping[Any, Any]) -> Frames:
        """Return B rows in the format of training. Raises WireError naming a missing or mis-shaped entry."""

    def held_pose(self, request: Mapping[Any, Any]) -> np.ndarray:
        """Return float32 [B, …], the current pose of the parts that the policy does not control."""

    def full_actions(self, actions: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Convert the policy's actions [B, C, A] to the client's [B, C, …]."""

    def describe_observation(self) -> dict[str, dict[str, Any]]:
        """Return the expected entries: key -> type, shape, and other names."""


class SimulatorWire:
    """Wire of a policy for a simulator other than R1Pro's. Its keys are openpi's names."""

    def __init__(
        self, env: EnvConfig, cameras: Sequence[str], num_proprio: int, num_actions: int, instruction: str | None
    ):
        """cameras: N names, in the policy's order. instruction: for requests without a prompt; None: they need one."""
        self.num_proprio = num_proprio
        self.num_actions = num_actions
        self.num_client_actions = self.num_actions
        self._size = env.image_size
        self.instruction = instruction
        keys = {name: f"observation/{name}" for name in cameras}
        self._images = list(keys.values())
        self._state = STATE if self.num_proprio else None
        self.names = OpenpiNames(keys, self._state, camera_places(env, cameras))

    def is_batched(self, request: Mapping[Any, Any]) -> bool:
        """Return whether an observation has a leading dimension of rows."""
        if self._state is not None:
            return read_numbers(request, self._state).ndim == 2
        first = request.get(self._images[0]) if self._images else None
        return isinstance(first, np.ndarray) and first.ndim == 4

    def frames(self, request: Mapping[Any, Any]) -> Frames:
        """Return B rows in the format of training. Raises WireError naming a missing or mis-shaped entry."""
        pictures = [read_images(request, key, self._size) for key in self._images]
        state = np.zeros((len(pictures[0]) if pictures else 1, 0), np.float32)
        if self._state is not None:
            state = np.atleast_2d(read_numbers(request, self._state)).astype(np.float32)
            require_finite(state, self._state)
            if state.shape[1] != self.num_proprio:
                raise WireError(f"{self._state} has {state.shape[1]} values; the policy takes {self.num_proprio}")
        for key, picture in zip(self._images, pictures, strict=True):
            if len(picture) != len(state):
                raise WireError(f"{key} has {len(picture)} rows, expected {len(state)}")
        empty = np.zeros((len(state), 0, self._size, self._size, 3), np.uint8)
        stacked = np.stack(pictures, axis=1) if pictures else empty
        return Frames(stacked, state, read_prompts(request, self.instruction, len(state)))

    def held_pose(self, request: Mapping[Any, Any]) -> np.ndarray:
        """Return float32 [B, 0]: the policy controls everything."""
        return np.zeros((len(self.frames(request)), 0), np.float32)

    def full_actions(self, actions: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Return [B, C, A] unchanged."""
        return actions.astype(np.float32)

    def describe_observation(self) -> dict[str, dict[str, Any]]:
        """Return the expected entries: key -> type, shape, and other names."""
        shape = [self._size, self._size, 3]
        entries = {key: describe_image(shape, self.names.other_names(key)) for key in self._images}
        if self._state is not None:
            entries[self._state] = {"dtype": "float32", "shape": [self.num_proprio], "names": []}
        return entries


def camera_names(env: EnvConfig, num_images: int) -> list[str]:
    """Return the simulator's names of a policy's cameras; image_0 … if it gives none."""
    named = list(simulator_spec(env).world.planned_spaces(env).cameras)
    return named if len(named) == num_images else [f"image_{index}" for index in range(num_images)]


def camera_places(env: EnvConfig, cameras: Sequence[str]) -> list[str]:
    """Return openpi's name of each camera's picture, which the simulator decides, not the order of `cameras`.

    The camera that vla-eval calls `wrist` is observation/wrist_image, and the first other camera of the simulator is
    observation/image. Without a wrist, they are the simulator's first and second camera.
    Example: camera_places(env, ["robot0_eye_in_hand"]) == ["observation/wrist_image"]
    """
    spec = simulator_spec(env)
    planned = spec.world.planned_spaces(env).cameras
    called = spec.wire.conventions(env).cameras
    known = planned if set(cameras) <= set(planned) else cameras
    wrist = next((name for name in known if called.get(name, name) == WRIST), None)
    free = [*IMAGES, *(f"observation/image_{at}" for at in range(len(IMAGES), len(known)))]
    places = {} if wrist is None else {wrist: free.pop(1)}
    places |= dict(zip((name for name in known if name != wrist), free, strict=False))
    return [places[name] for name in cameras]


def describe_image(shape: list[int], names: list[str]) -> dict[str, Any]:
    """Return the description of an image. shape: [S, S, 3], to which images of other sizes are scaled."""
    return {"dtype": "uint8", "shape": shape, "is_scaled": True, "names": names}
