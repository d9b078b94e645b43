"""A client of the evaluator's protocol; a connection runs one episode at a time."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from rlrun.serving.session import ACTION, CHUNK, CHUNK_REQUEST, RESET
from rlrun.serving.wire import WireError, pack, unpack
from rlrun.system.errors import ExitStatus, RunError


class PolicyClient:
    """Example::

    with PolicyClient("ws://127.0.0.1:8000", timeout_s=60) as client:
        client.reset()
        client.ask(observation, chunk_size=4)
        actions = client.receive()  # [4, 23], or [1, 23] from a server that gives single actions
    """

    def __init__(self, address: str, timeout_s: float):
        """Connect. Raises RunError if no server of this protocol answers in time."""
        self._address, self._timeout_s = address, timeout_s
        self._stack = ExitStack()
        try:
            connecting = connect(address, compression=None, max_size=None, open_timeout=timeout_s, ping_timeout=None)
            self._socket = self._stack.enter_context(connecting)
        except (OSError, ValueError, WebSocketException) as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error
        self.metadata = self._receive()

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def reset(self) -> None:
        """Begin a new episode; the server sends no answer."""
        self._send({RESET: True})

    def ask(self, observation: dict[str, Any], chunk_size: int) -> None:
        """Request the next action, or `chunk_size` actions if the server supports chunks."""
        self._send(observation if chunk_size < 2 else observation | {CHUNK_REQUEST: chunk_size})

    def receive(self) -> Any:
        """Receive [chunk_size or 1, dimensions] as the server sent it. Raises RunError."""
        answer = self._receive()
        if CHUNK in answer:
            return answer[CHUNK]
        if ACTION not in answer:
            raise self._failed(f"its answer has no {ACTION!r}: {sorted(map(str, answer))[:8]}")
        return answer[ACTION][None]

    def close(self) -> None:
        """Close the connection."""
        self._stack.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.send(pack(message))
        except (OSError, ConnectionClosed) as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error

    def _receive(self) -> dict[Any, Any]:
        try:
            data = self._socket.recv(timeout=self._timeout_s)
            if isinstance(data, str):
                raise self._failed(f"its message: {data[:500]}")
            return unpack(data)
        except TimeoutError as error:
            raise self._failed(f"no answer within {self._timeout_s:g} s") from error
        except (OSError, ConnectionClosed, WireError) as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error

    def _failed(self, cause: str) -> RunError:
        return RunError(
            f"The policy server at {self._address} does not answer correctly.",
            key="evaluation.server",
            value=self._address,
            cause=cause,
            remedy="Check that it runs (GET /healthz), the address, and that it takes this robot's cameras and "
            "proprioception (env.cameras, env.proprio).",
            exit_status=ExitStatus.bad_input,
        )
