"""Session of one client at the server, and the client of a policy server.

A session keeps the rest of its last action chunk, and the pose of the parts that the policy does not control.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from rlrun.data.messages import ActionChunk, Observation
from rlrun.serving.formats import ACTIONS, Wire
from rlrun.serving.wire import WireError, pack, unpack
from rlrun.system.errors import ExitStatus, RunError

RESET = "reset"
CHUNK_REQUEST = "__action_chunk_size__"
ACTION, CHUNK = "action", "action_chunk"
MAX_CHUNK_REQUEST = 10_000

Act = Callable[[Observation], ActionChunk]


class ClientSession:
    """Session of one client, whose requests are answered in order; `reset` starts a new episode.

    temperature: of sampling; 0: most likely actions. replan_steps: number of actions of a chunk that are used for
    requests of single actions; None: all, as in training.
    """

    def __init__(self, wire: Wire, act: Act, number: int, seed: int, temperature: float, replan_steps: int | None):
        self._wire, self._act = wire, act
        self._number, self._seed, self._temperature = number, seed, temperature
        self._replan_steps = replan_steps
        self._episode = 0
        self.reset()

    def reset(self) -> None:
        """Start a new episode with the next request."""
        self._episode += 1
        self._num_passes = 0
        self._held: np.ndarray | None = None
        self._unsent = np.zeros((0, 0, 0), np.float32)  # [B, steps, A] not sent yet

    def answer(self, request: dict[Any, Any]) -> dict[str, Any]:
        """Return {"actions": float32 [(B,) C, A]} for a request with openpi's names.

        Else return {"action": [(B,) A]}, and for a request of K steps also "action_chunk": [(B,) K, A], unless a chunk
        has fewer. Raises WireError.
        """
        wanted = _chunk_size(request)
        translated = self._wire.names.translate(request)
        is_batched = self._wire.is_batched(request if translated is None else translated)
        if translated is not None:
            self._held = None  # these clients do not signal the start of an episode
            answer = {ACTIONS: self._run_policy(translated)}
        elif wanted is not None:
            chunk = self._run_policy(request)
            self._unsent = chunk[:, :0]
            answer = {ACTION: chunk[:, 0]}
            if wanted <= chunk.shape[1]:
                answer[CHUNK] = chunk[:, :wanted]
        else:
            if self._unsent.shape[1] == 0:
                self._unsent = self._run_policy(request)[:, : self._replan_steps]
            answer = {ACTION: self._unsent[:, 0]}
            self._unsent = self._unsent[:, 1:]
        return answer if is_batched else {name: actions[0] for name, actions in answer.items()}

    def _run_policy(self, request: dict[Any, Any]) -> np.ndarray:
        """Run one forward pass. Returns float32 [B, C, A] for all dimensions of the robot."""
        frames = self._wire.frames(request)
        if self._held is None:
            self._held = self._wire.held_pose(request)
        if len(self._held) != len(frames):
            raise WireError(f"{len(frames)} rows, but the episode began with {len(self._held)}; send a reset first")
        entropy = (self._seed, self._number, self._episode, self._num_passes)
        keys = np.random.SeedSequence(entropy).generate_state(len(frames), np.uint64)
        self._num_passes += 1
        chunk = self._act(Observation(0, frames, keys, self._temperature, None))
        return self._wire.full_actions(chunk.actions, self._held)


def _chunk_size(request: dict[Any, Any]) -> int | None:
    wanted = request.pop(CHUNK_REQUEST, None)
    if wanted is None:
        return None
    if isinstance(wanted, (bool, np.bool_)) or not isinstance(wanted, (int, np.integer)):
        raise WireError(f"{CHUNK_REQUEST} is {wanted!r}, expected a whole number")
    if not 1 <= wanted <= MAX_CHUNK_REQUEST:
        raise WireError(f"{CHUNK_REQUEST} is {wanted}, expected 1 to {MAX_CHUNK_REQUEST}")
    return int(wanted)


class PolicyClient:
    """Websocket client of a policy server.

    Example::

    with PolicyClient("ws://127.0.0.1:8000", timeout_s=60) as client:
        client.reset()
        client.request(observation, chunk_size=4)
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
        """Start a new episode; the server sends no answer."""
        self._send({RESET: True})

    def request(self, observation: dict[str, Any], chunk_size: int) -> None:
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
