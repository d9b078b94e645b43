"""Decides which parts of a Gymnasium observation are cameras, proprioception and instruction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rlrun.envs.gymnasium.settings import GymnasiumConfig
from rlrun.envs.pictures import resized
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

WHOLE = ""  # the key of an observation that is not a Dict


class ObservationReader:
    """Reads single observations of one space.

    Keys are as configured, or guessed from the space: pictures (uint8 [H, W, 3]) are cameras, the only text is the
    instruction, all other numbers are proprioception. Raises RunError if a picture would become proprioception.
    """

    def __init__(self, space: spaces.Space, wanted: GymnasiumConfig, image_size: int):
        self._size = image_size
        self._leaves = dict(_leaves(space, WHOLE))
        self.image_keys = self._chosen("image_keys", wanted.image_keys, is_image)
        texts = self._chosen("instruction_key", _listed(wanted.instruction_key), _is_text)
        self.instruction_key = texts[0] if len(texts) == 1 else None
        rest = [key for key in self._leaves if key not in self.image_keys and key not in texts]
        self.state_keys = self._states(wanted.state_keys, rest, wanted.image_keys)
        self.num_images = len(self.image_keys)  # N
        self.cameras = tuple(key or "image" for key in self.image_keys)  # N names
        self.num_proprio = sum(spaces.flatdim(self._leaves[key]) for key in self.state_keys)  # P
        self._no_images = np.zeros((0, image_size, image_size, 3), np.uint8)
        self._is_plain = self.state_keys == [WHOLE] and isinstance(space, spaces.Box) and len(space.shape) == 1
        guessed = wanted.image_keys is None or wanted.state_keys is None or wanted.instruction_key is None
        self.guess = self.describe() if guessed and isinstance(space, spaces.Dict) else ""

    def describe(self) -> str:
        """Describe the roles of the keys. Example: "image -> camera, state -> proprioception, task -> instruction"."""
        texts = _listed(self.instruction_key)
        parts = [(self.image_keys, "camera"), (self.state_keys, "proprioception"), (texts, "instruction")]
        mapped = [f"{', '.join(key or 'all of it' for key in keys)} -> {what}" for keys, what in parts if keys]
        left_out = set(self._leaves) - {key for keys, _ in parts for key in keys or ()}
        return ", ".join([*mapped, *(f"{key} -> left out" for key in sorted(left_out))])

    def _chosen(self, name: str, named: list[str] | None, is_fit: Any) -> list[str]:
        if named is None:
            return [key for key, space in self._leaves.items() if is_fit(space)]
        for key in named:
            if key not in self._leaves or not is_fit(self._leaves[key]):
                raise self._refused(name, key, "a picture, uint8 [H, W, 3]" if name == "image_keys" else "text")
        return named

    def _states(self, named: list[str] | None, rest: list[str], image_keys: list[str] | None) -> list[str]:
        for key in named or ():
            if key not in self._leaves or _is_text(self._leaves[key]) or _holds_picture(self._leaves[key]):
                raise self._refused("state_keys", key, "numbers that are no picture")
        if named is not None:
            return named
        dropped = [key for key in rest if image_keys is not None and is_image(self._leaves[key])]
        found = [key for key in rest if not _is_text(self._leaves[key]) and key not in dropped]
        for key in found:
            if _holds_picture(self._leaves[key]):
                raise RunError(
                    f"A picture would be flattened into the proprioception: '{key or 'the observation'}'.",
                    key="env.gymnasium.state_keys",
                    value=key,
                    cause=f"It is {self._leaves[key]}; cameras are uint8 [H, W, 3].",
                    remedy="Name the keys that are state in env.gymnasium.state_keys, or wrap the environment so that "
                    "the picture is uint8 [H, W, 3].",
                    exit_status=ExitStatus.bad_config,
                    row="gymnasium-states",
                )
        return found

    def _refused(self, name: str, key: str, expected: str) -> RunError:
        known = ", ".join(f"{key or 'observation'} ({space})" for key, space in self._leaves.items())
        return RunError(
            f"The observation has no '{key}' that is {expected}.",
            key=f"env.gymnasium.{name}",
            value=key,
            cause=f"It has {known}.",
            remedy="Name one of these.",
            exit_status=ExitStatus.bad_config,
            row="gymnasium-observation-keys",
        )

    def images(self, observation: Any) -> np.ndarray:
        """Return uint8 [N, S, S, 3] of a single observation, with S = env.image_size."""
        if not self.image_keys:
            return self._no_images
        return np.stack([resized(np.asarray(_at(observation, key)), self._size, self._size) for key in self.image_keys])

    def proprio(self, observation: Any) -> np.ndarray:
        """Return float32 [P] of a single observation."""
        if self._is_plain:
            return observation  # the rows convert it to float32
        if not self.state_keys:
            return np.zeros(0, np.float32)
        parts = [spaces.flatten(self._leaves[key], _at(observation, key)) for key in self.state_keys]
        return np.concatenate([np.asarray(part, np.float32).reshape(-1) for part in parts])

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


def is_image(space: spaces.Space) -> bool:
    """Return whether the space is a camera picture: uint8 [H, W, 3]."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and space.shape[2:] == (3,)


def _is_text(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Text)


def _holds_picture(space: spaces.Space) -> bool:
    """Return whether flattening gives numbers of pixels: bytes in three or more dimensions, or a Tuple with such."""
    if isinstance(space, spaces.Tuple):
        return any(_holds_picture(below) for below in space.spaces)
    if isinstance(space, spaces.Dict):
        return any(_holds_picture(below) for below in space.spaces.values())
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 3
