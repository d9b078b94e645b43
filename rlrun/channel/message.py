"""Messages of the channel, and their frames: the header of rlrun/data/message_format.py, then each large array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq

from rlrun.channel.connection import MAX_FRAME_BYTES
from rlrun.data.message_format import FormatError, MessageFormat
from rlrun.data.messages import ActionChunk, Frames, Observation
from rlrun.system.errors import RunError

Result = ActionChunk | RunError


@dataclass(frozen=True, eq=False)
class Request:
    """env -> rollout: an observation, to be answered by one `Response`."""

    collection: int
    observation: Observation


@dataclass(frozen=True, eq=False)
class EndOfStream:
    """env -> rollout: the env worker has no more observations in this collection."""

    collection: int
    env_worker: int


@dataclass(frozen=True, eq=False)
class Response:
    """rollout -> env: the actions, or the reason why there are none."""

    collection: int
    result: Result


Message = Request | EndOfStream | Response
_FORMAT = MessageFormat(Request, EndOfStream, Response, Observation, Frames, ActionChunk)


def encode(message: Message) -> list[Any]:
    """Return the frames of a message, large arrays uncopied. Raises RunError if an array is too large for a frame."""
    arrays: list[np.ndarray] = []

    def put(array: np.ndarray) -> int:
        if array.nbytes > MAX_FRAME_BYTES:
            raise _too_large(array)
        arrays.append(array)
        return len(arrays) - 1

    return [_FORMAT.encode(message, put), *arrays]


def decode(frames: Sequence[zmq.Frame]) -> Message:
    """Return the message of frames; its large arrays use the frames' memory. Raises FormatError."""

    def get(index: int, num_bytes: int) -> Any:
        if not 0 <= index < len(frames) - 1 or len(frames[1 + index]) != num_bytes:
            raise FormatError(f"frame {index} of {len(frames) - 1} does not hold an array of {num_bytes} bytes")
        return frames[1 + index].buffer

    message = _FORMAT.decode(frames[0].buffer, get)
    if not isinstance(message, (Request, EndOfStream, Response)):
        raise FormatError(f"a message cannot be {type(message).__name__}")
    return message


def _too_large(array: np.ndarray) -> RunError:
    return RunError(
        f"An array of {array.nbytes} bytes is too large for the channel between env and rollout workers.",
        key="env.num_workers",
        cause=f"one frame holds at most {MAX_FRAME_BYTES} bytes; this array has the shape {list(array.shape)}",
        remedy="Share env.num_envs among more env workers, or take smaller images.",
    )
