"""Observations and actions of any simulator in openpi's terms.

Shape legend: B rows, N cameras, H x W pixels, S pixels per side of the policy's images, P proprioception, C control
steps, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.data.messages import Frames
from rlrun.serving.arrays import images, numbers, require_finite
from rlrun.serving.openpi_names import STATE, OpenpiNames, prompts
from rlrun.serving.wire import WireError


class Wire(Protocol):
    """Converts between the messages of clients and rlrun's. `names` translates requests of openpi's clients."""

    names: OpenpiNames
    instruction: str | None  # for requests without a prompt; None: they need one
    num_client_actions: int  # dimensions of an action that a client gets

    def is_batched(self, request: Mapping[Any, Any]) -> bool:
        """Return whether an observation has a leading dimension of rows. Raises WireError."""

    def frames(self, request: Mapping[Any, Any]) -> Frames:
        """Return B rows in the format of training. Raises WireError naming a missing or mis-shaped entry."""

    def held(self, request: Mapping[Any, Any]) -> np.ndarray:
        """Return float32 [B, …]: the present pose of what the policy does not control."""

    def whole(self, actions: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Convert [B, C, A] of the policy to [B, C, …] of the client."""

    def described(self) -> dict[str, dict[str, Any]]:
        """Return the expected entries: key -> type, shape, and further names."""


class SimulatorWire:
    """The wire of a policy for a simulator that is no R1Pro. Its own keys are openpi's names."""

    def __init__(
        self, env: EnvConfig, cameras: Sequence[str], num_proprio: int, num_actions: int, instruction: str | None
    ):
        """cameras: N names, in the policy's order. instruction: for requests without a prompt; None: they need one."""
        self.num_proprio, self.num_actions = num_proprio, num_actions
        self.num_client_actions = self.num_actions
        self._size, self.instruction = env.image_size, instruction
        keys = {name: f"observation/{name}" for name in cameras}
        self._images, self._state = list(keys.values()), STATE if self.num_proprio else None
        self.names = OpenpiNames(keys, self._state)

    def is_batched(self, request: Mapping[Any, Any]) -> bool:
        """Return whether an observation has a leading dimension of rows."""
        if self._state is not None:
            return numbers(request, self._state).ndim == 2
        first = request.get(self._images[0]) if self._images else None
        return isinstance(first, np.ndarray) and first.ndim == 4

    def frames(self, request: Mapping[Any, Any]) -> Frames:
        """Return B rows in the format of training. Raises WireError naming a missing or mis-shaped entry."""
        pictures = [images(request, key, self._size) for key in self._images]
        state = np.zeros((len(pictures[0]) if pictures else 1, 0), np.float32)
        if self._state is not None:
            state = np.atleast_2d(numbers(request, self._state)).astype(np.float32)
            require_finite(state, self._state)
            if state.shape[1] != self.num_proprio:
                raise WireError(f"{self._state} has {state.shape[1]} values; the policy takes {self.num_proprio}")
        for key, picture in zip(self._images, pictures, strict=True):
            if len(picture) != len(state):
                raise WireError(f"{key} has {len(picture)} rows, expected {len(state)}")
        empty = np.zeros((len(state), 0, self._size, self._size, 3), np.uint8)
        stacked = np.stack(pictures, axis=1) if pictures else empty
        return Frames(stacked, state, prompts(request, self.instruction, len(state)))

    def held(self, request: Mapping[Any, Any]) -> np.ndarray:
        """Return float32 [B, 0]: the policy controls everything."""
        return np.zeros((len(self.frames(request)), 0), np.float32)

    def whole(self, actions: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Return [B, C, A] unchanged."""
        return actions.astype(np.float32)

    def described(self) -> dict[str, dict[str, Any]]:
        """Return the expected entries: key -> type, shape, and further names."""
        shape = [self._size, self._size, 3]
        entries = {key: described_image(shape, self.names.besides(key)) for key in self._images}
        if self._state is not None:
            entries[self._state] = {"dtype": "float32", "shape": [self.num_proprio], "names": []}
        return entries


def camera_names(env: EnvConfig, num_images: int) -> list[str]:
    """Return the simulator's names of a policy's cameras; image_0 … if it gives none."""
    spec = simulator_spec(env)
    named = list(env.cameras) if spec.cameras is not None else list(spec.image_names(env) or ())
    return named if len(named) == num_images else [f"image_{index}" for index in range(num_images)]


def described_image(shape: list[int], names: list[str]) -> dict[str, Any]:
    """Return the description of an image. shape: [S, S, 3], to which images of other sizes are scaled."""
    return {"dtype": "uint8", "shape": shape, "is_scaled": True, "names": names}
