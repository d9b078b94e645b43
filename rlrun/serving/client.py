"""Clients of policy servers: a websocket whose waits all have a deadline, and the client of BEHAVIOR's protocol."""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidStatus, SecurityError, WebSocketException
from websockets.sync.client import ClientConnection, connect

from rlrun.edges.frames import Frames
from rlrun.serving.robot import RobotWire
from rlrun.serving.session import ACTION, CHUNK, CHUNK_REQUEST, RESET
from rlrun.serving.wire import WireError, pack, unpack
from rlrun.system.errors import ExitStatus, RunError

TIMEOUT_KEY = "evaluation.server_timeout_s"
CLOSE_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024**2  # a chunk takes some kilobytes
_PROGRESS_EVERY_S = 1.0  # interval at which a wait reports progress


class RowClient(Protocol):
    """The connection of one row of an env worker, an episode after another."""

    notes: tuple[str, ...]  # what the user should know about the server, a sentence each

    def begin(self, frames: Frames, row: int) -> None:
        """Start an episode, whose first observation is a row of `frames`."""

    def request(self, frames: Frames, row: int) -> None:
        """Send a row; `receive` must follow."""

    def receive(self) -> np.ndarray:
        """Receive float32 [steps, A], in the simulator's units. Raises RunError naming the server."""

    def close(self) -> None:
        """Close the connection."""


class _NamedServer(ClientConnection):
    """A connection to the server that the user named, which may redirect to its own paths only."""

    def handshake(self, *args: Any, **kwargs: Any) -> None:
        """Open the connection. Raises SecurityError for a redirect to another server, which websockets would follow."""
        try:
            super().handshake(*args, **kwargs)
        except InvalidStatus as error:
            place = error.response.headers.get("Location", "")
            if self.request is None or urlsplit(place).netloc in ("", self.request.headers["Host"]):
                raise
            sentence = f"it redirects to another server, {place!r:.200}; give that address if you trust it"
            raise SecurityError(sentence) from error


class ServerConnection:
    """Websocket connection to `evaluation.server`. Connecting, sending and receiving end after `timeout_s`."""

    def __init__(self, address: str, timeout_s: float, remedy: str, progress: Callable[[], None] = lambda: None):
        """Connect. Raises RunError if no websocket server answers in time.

        remedy: what else the user can check if the server fails. progress: called every second of a wait.
        """
        self._address = address
        self._timeout_s = timeout_s
        self._remedy = remedy
        self._progress = progress
        self._stack = ExitStack()
        try:
            opened = connect(
                address,
                open_timeout=timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_timeout=None,  # a server that compiles kernels answers no pings
                compression=None,  # compression takes time and does not make images smaller
                max_size=MAX_ANSWER_BYTES,
                create_connection=_NamedServer,
            )
            self._socket = self._stack.enter_context(opened)
            # a server that stops reading would block a send for ever; the kernel ends it
            seconds = struct.pack("ll", math.ceil(timeout_s), 0)
            with suppress(OSError):  # it has closed already, and the next message says why
                self._socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        except (OSError, ValueError, WebSocketException) as error:
            self._stack.close()
            raise self.failed(f"{type(error).__name__}: {error}") from error

    def send(self, data: bytes) -> None:
        """Send one message. Raises RunError."""
        try:
            self._socket.send(data)
        except (OSError, ConnectionClosed) as error:
            if isinstance(error.__cause__ or error, BlockingIOError):
                raise self.failed(f"it took no message within {self._timeout_s:g} s ({TIMEOUT_KEY})") from error
            raise self.failed(f"{type(error).__name__}: {error}") from error

    def receive(self) -> bytes:
        """Receive one binary message. Raises RunError."""
        try:
            data = self._wait()
        except (OSError, ConnectionClosed) as error:
            raise self.failed(f"{type(error).__name__}: {error}") from error
        if isinstance(data, str):
            raise self.failed(f"its message: {data[:500]}")
        return data

    def _wait(self) -> bytes | str:
        deadline = time.monotonic() + self._timeout_s
        while True:
            self._progress()
            left = deadline - time.monotonic()
            if left <= 0:
                raise self.failed(f"no answer within {self._timeout_s:g} s ({TIMEOUT_KEY})")
            try:
                return self._socket.recv(timeout=min(left, _PROGRESS_EVERY_S))
            except TimeoutError:
                continue

    def close(self) -> None:
        """Close the connection."""
        self._stack.close()

    def failed(self, cause: str) -> RunError:
        """Return the error of a server that does not answer, or answers wrongly."""
        return RunError(
            f"The policy server at {self._address} does not answer correctly.",
            key="evaluation.server",
            value=self._address,
            cause=cause,
            remedy=self._remedy,
            exit_status=ExitStatus.bad_input,
        )


class EvaluatorClient:
    """Client of BEHAVIOR's protocol, for an R1Pro.

    Example::

        client = EvaluatorClient("ws://127.0.0.1:8000", 60.0, RobotWire(env), chunk_size=4)
        client.begin(frames, 0)
        client.request(frames, 0)
        actions = client.receive()  # [4, A], or [1, A] from a server that gives single actions
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        robot: RobotWire,
        chunk_size: int,
        progress: Callable[[], None] = lambda: None,
    ):
        """Connect. Raises RunError if no server of this protocol answers in time."""
        remedy = (
            "Check that it runs (GET /healthz), the address, and that it takes this robot's cameras and proprioception "
            "(the keys of its section of env). A server of vla-eval's protocol is named as ws://host:port/vla-eval."
        )
        self._connection = ServerConnection(address, timeout_s, remedy, progress)
        self._robot = robot
        self._chunk_size = chunk_size
        self.notes: tuple[str, ...] = ()
        self.metadata = self._receive()

    def begin(self, frames: Frames, row: int) -> None:
        """Start a new episode; the server sends no answer."""
        self._connection.send(pack({RESET: True}))

    def request(self, frames: Frames, row: int) -> None:
        """Request the next action, or `chunk_size` actions if the server supports chunks."""
        asked = self._robot.request(frames, row)
        self._connection.send(pack(asked if self._chunk_size < 2 else asked | {CHUNK_REQUEST: self._chunk_size}))

    def receive(self) -> np.ndarray:
        """Receive float32 [chunk_size or 1, A] of the controlled parts. Raises RunError."""
        answer = self._receive()
        chunk = answer.get(CHUNK)
        try:
            if chunk is None:
                if not isinstance(answer.get(ACTION), np.ndarray):
                    raise WireError(f"its answer has no array {ACTION!r}: {sorted(map(str, answer))[:8]}")
                chunk = answer[ACTION][None]
            return self._robot.controlled_actions(chunk)
        except WireError as error:
            raise self._connection.failed(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _receive(self) -> dict[Any, Any]:
        data = self._connection.receive()
        try:
            return unpack(data)
        except WireError as error:
            raise self._connection.failed(str(error)) from error
