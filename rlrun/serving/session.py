"""Sessions of one client at the server: the policy's chunks, and the messages of openpi's clients and the evaluator.

A session keeps the rest of its last action chunk, and the pose of the parts that the policy does not control.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from rlrun.edges.actions import ActionChunk
from rlrun.edges.observations import Observation
from rlrun.serving.formats import ACTIONS, Wire
from rlrun.serving.wire import WireError, pack, unpack

RESET = "reset"
CHUNK_REQUEST = "__action_chunk_size__"
ACTION = "action"
CHUNK = "action_chunk"
MAX_CHUNK_REQUEST = 10_000

Act = Callable[[Observation], ActionChunk]


class Session(Protocol):
    """State that the server holds for one client; `answer` is called on another thread, one message after another."""

    @property
    def greeting(self) -> bytes | None:
        """The message with which the server begins; None: the client speaks first."""

    def answer(self, data: bytes | str) -> bytes | None:
        """Return the answer to a message, or None if it has none. Raises WireError, which ends the connection."""


class PolicySession:
    """The policy's chunks for one client, whose requests are answered in order; `reset` starts a new episode.

    temperature: of sampling; 0: most likely actions. replan_steps: number of actions of a chunk that are used for
    requests of single actions; None: all, as in training.
    """

    def __init__(self, wire: Wire, act: Act, number: int, seed: int, temperature: float, replan_steps: int | None):
        self.wire = wire
        self._act = act
        self._number = number
        self._seed = seed
        self._temperature = temperature
        self._replan_steps = replan_steps
        self._episode = 0
        self.reset()

    def reset(self) -> None:
        """Start a new episode with the next request."""
        self._episode += 1
        self._num_passes = 0
        self._unsent = np.zeros((0, 0, 0), np.float32)  # [B, steps, A] not sent yet
        self.release_pose()

    def release_pose(self) -> None:
        """Let the parts that the policy does not control hold the pose of the next request."""
        self._held: np.ndarray | None = None

    def next_action(self, request: Mapping[Any, Any]) -> np.ndarray:
        """Return the next action of the running chunk, else the first of a new one: float32 [B, A]."""
        if self._unsent.shape[1] == 0:
            self._unsent = self.chunk(request)[:, : self._replan_steps]
        action = self._unsent[:, 0]
        self._unsent = self._unsent[:, 1:]
        return action

    def chunk(self, request: Mapping[Any, Any]) -> np.ndarray:
        """Run one forward pass, and drop the running chunk. Returns float32 [B, C, A] for the whole robot."""
        frames = self.wire.frames(request)
        if self._held is None:
            self._held = self.wire.held_pose(request)
        if len(self._held) != len(frames):
            raise WireError(f"{len(frames)} rows, but the episode began with {len(self._held)}; send a reset first")
        entropy = (self._seed, self._number, self._episode, self._num_passes)
        keys = np.random.SeedSequence(entropy).generate_state(len(frames), np.uint64)
        self._num_passes += 1
        chosen = self._act(Observation(0, frames, keys, self._temperature, None))
        actions = self.wire.full_actions(chosen.actions, self._held)
        self._unsent = actions[:, :0]
        return actions


class OpenpiSession:
    """Messages of openpi's clients and of BEHAVIOR's evaluator; metadata: what the server says first."""

    def __init__(self, policy: PolicySession, metadata: Mapping[str, Any]):
        self._policy = policy
        self._wire = policy.wire
        self.greeting = pack(metadata)

    def answer(self, data: bytes | str) -> bytes | None:
        """Return the answer to a request; a reset has none. Raises WireError."""
        start = time.monotonic()
        request = unpack(data)
        if RESET in request:
            self._policy.reset()
            return None
        answer: dict[str, Any] = self._actions(request)
        answer["server_timing"] = {"infer_ms": 1000 * (time.monotonic() - start)}
        return pack(answer)

    def _actions(self, request: dict[Any, Any]) -> dict[str, Any]:
        """Return {"actions": float32 [(B,) C, A]} for a request with openpi's names.

        Else return {"action": [(B,) A]}, and for a request of K steps also "action_chunk": [(B,) K, A], unless a chunk
        has fewer. Raises WireError.
        """
        wanted = _chunk_size(request)
        translated = self._wire.names.translate(request)
        is_batched = self._wire.is_batched(request if translated is None else translated)
        if translated is not None:
            self._policy.release_pose()  # these clients do not signal the start of an episode
            answer = {ACTIONS: self._policy.chunk(translated)}
        elif wanted is not None:
            chunk = self._policy.chunk(request)
            answer = {ACTION: chunk[:, 0]}
            if wanted <= chunk.shape[1]:
                answer[CHUNK] = chunk[:, :wanted]
        else:
            answer = {ACTION: self._policy.next_action(request)}
        return answer if is_batched else {name: actions[0] for name, actions in answer.items()}


def _chunk_size(request: dict[Any, Any]) -> int | None:
    wanted = request.pop(CHUNK_REQUEST, None)
    if wanted is None:
        return None
    if isinstance(wanted, (bool, np.bool_)) or not isinstance(wanted, (int, np.integer)):
        raise WireError(f"{CHUNK_REQUEST} is {wanted!r}, expected a whole number")
    if not 1 <= wanted <= MAX_CHUNK_REQUEST:
        raise WireError(f"{CHUNK_REQUEST} is {wanted}, expected 1 to {MAX_CHUNK_REQUEST}")
    return int(wanted)
