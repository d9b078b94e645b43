"""Client of openpi's protocol: one row of an env worker asks a policy server as openpi's evaluation of LIBERO does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlrun.edges.frames import Frames
from rlrun.serving.client import ServerConnection
from rlrun.serving.formats import ACTIONS, IMAGES, PROMPT, STATE
from rlrun.serving.wire import WireError, pack, unpack

_REMEDY = (
    "Check that it runs (GET /healthz), the address, and that it serves a policy of this world: it is sent "
    f"{', '.join((*IMAGES, STATE, PROMPT))}. A server of vla-eval's protocol is named as ws://host:port/vla-eval."
)


class OpenpiClient:
    """A connection to a policy server of openpi's protocol; every answer is checked.

    Example::

        client = OpenpiClient("ws://127.0.0.1:8000", 60.0, num_actions=7, places=IMAGES)
        client.begin(frames, 0)
        client.request(frames, 0)
        actions = client.receive()  # [steps, 7]
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        num_actions: int,
        places: Sequence[str],
        progress: Callable[[], None] = lambda: None,
    ):
        """Connect, and read what the server says of itself. Raises RunError if it does not answer in time.

        places: openpi's names of the world's pictures by camera_places, in the world's order; those of IMAGES are sent.
        """
        self._connection = ServerConnection(address, timeout_s, _REMEDY, progress)
        self._num_actions = num_actions
        self._places = tuple(places)
        self.notes: tuple[str, ...] = ()
        self.metadata = self._receive()

    def begin(self, frames: Frames, row: int) -> None:
        """Start a new episode, of which the protocol tells the server nothing."""

    def request(self, frames: Frames, row: int) -> None:
        """Request the next chunk for a row: up to two pictures, the state and the sentence."""
        pictures = {
            place: picture for place, picture in zip(self._places, frames.images[row], strict=True) if place in IMAGES
        }
        self._connection.send(pack(pictures | {STATE: frames.proprio[row], PROMPT: frames.instructions[row]}))

    def receive(self) -> np.ndarray:
        """Receive float32 [steps, A]. Raises RunError."""
        chunk = self._receive().get(ACTIONS)
        if not isinstance(chunk, np.ndarray) or chunk.ndim != 2 or chunk.shape[1] < self._num_actions:
            given = f"{chunk.dtype} {list(chunk.shape)}" if isinstance(chunk, np.ndarray) else "no array"
            raise self._connection.failed(f"its {ACTIONS} are {given}, expected [steps, {self._num_actions}]")
        actions = chunk[:, : self._num_actions].astype(np.float32)
        if not np.isfinite(actions).all():
            raise self._connection.failed(f"its {ACTIONS} hold NaN or infinity")
        return actions

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _receive(self) -> dict[Any, Any]:
        data = self._connection.receive()
        try:
            return unpack(data)
        except WireError as error:
            raise self._connection.failed(str(error)) from error
