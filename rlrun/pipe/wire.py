"""Messages between a worker and its other process: a fixed prefix, a header, raw arrays.

A message on the socket::

    4 bytes  b"RLRW"
    2 bytes  version
    2 bytes  0
    4 bytes  length of the header
    8 bytes  length of the arrays that follow the header
    header   a map in the format of rlrun/data/message_format.py; a large array in it names its offset
    arrays   of the end that does not write to the shared memory; the other end's large arrays lie there

Needs Python 3.10, numpy and msgpack.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Any

import numpy as np

from rlrun.data.message_format import FormatError, MessageFormat
from rlrun.data.messages import ChunkResult, Frames
from rlrun.pipe.arena import Arena

VERSION = 2
MAGIC = b"RLRW"
PREFIX = struct.Struct("<4sHHIQ")
MAX_HEADER_BYTES = 1 << 26
MAX_ARRAY_BYTES = 1 << 31
FORMAT = MessageFormat(Frames, ChunkResult)


class WireError(Exception):
    """The other end sent what is no message of this version, or nothing that fits."""


class WireClosed(WireError):
    """The other end is gone."""


class WireTimeout(WireError):
    """The other end was silent, or did not read, for too long."""


class Channel:
    """One end. The end that owns the arena puts its large arrays there; the other reads from it.

    Example::

        channel.send({"call": "reset", "seeds": np.arange(4)}, timeout_s=10)
        channel.receive(timeout_s=60)  # {"answer": …}
    """

    def __init__(self, connection: socket.socket, arena: Arena, is_writing_arena: bool):
        self._connection = connection
        self._arena = arena
        self._is_writing_arena = is_writing_arena

    def send(self, message: dict[str, Any], timeout_s: float | None) -> None:
        """Raises WireTimeout when the other end does not read within `timeout_s` (None: waits), WireClosed."""
        header, buffers = self._packed(message)
        num_array_bytes = sum(len(buffer) for buffer in buffers)
        prefix = PREFIX.pack(MAGIC, VERSION, 0, len(header), num_array_bytes)
        self._connection.settimeout(timeout_s)
        try:
            self._connection.sendall(b"".join([prefix, header, *buffers]))
        except TimeoutError as error:
            raise WireTimeout(f"nothing was read for {timeout_s} s") from error
        except OSError as error:
            raise WireClosed(f"the other end is gone: {error}") from error

    def has_message(self, timeout_s: float) -> bool:
        """Whether something can be received, waiting so long for it; the end of the other side counts."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def receive(self, timeout_s: float | None) -> dict[str, Any]:
        """The next message. Raises WireTimeout (None: waits for ever), WireClosed, WireError for garbage.

        After WireTimeout the rest of a message may follow, so nothing more can be received.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        prefix = self._read(PREFIX.size, end)
        magic, version, _, num_header_bytes, num_array_bytes = PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise WireError(f"{bytes(prefix)[:8]!r} is no beginning of a message")
        if version != VERSION:
            raise WireError(f"the other end speaks version {version} of the wire, this one {VERSION}")
        if num_header_bytes > MAX_HEADER_BYTES or num_array_bytes > MAX_ARRAY_BYTES:
            raise WireError(f"a message of {num_header_bytes} + {num_array_bytes} bytes is larger than any of ours")
        header = self._read(num_header_bytes, end)
        return self._unpacked(header, self._read(num_array_bytes, end))

    def _read(self, num_bytes: int, end: float | None) -> bytearray:
        data = bytearray(num_bytes)
        view, done = memoryview(data), 0
        while done < num_bytes:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise WireTimeout("no whole message in time")
            self._connection.settimeout(left)
            try:
                count = self._connection.recv_into(view[done:])
            except TimeoutError as error:
                raise WireTimeout("no whole message in time") from error
            except OSError as error:
                raise WireClosed(f"the other end is gone: {error}") from error
            if count == 0:
                raise WireClosed("the other end closed the pipe")
            done += count
        return data

    def _packed(self, message: dict[str, Any]) -> tuple[bytes, list[bytes]]:
        """The header, and the bytes of arrays that go through the pipe."""
        behind: list[bytes] = []
        self._arena.reset()

        def put(array: np.ndarray) -> int:
            if self._is_writing_arena:
                return self._arena.write(array)
            behind.append(array.tobytes())
            return sum(map(len, behind[:-1]))

        return FORMAT.encode(message, put), behind

    def _unpacked(self, header: bytearray, data: bytearray) -> dict[str, Any]:
        def get(offset: int, num_bytes: int) -> Any:
            if not self._is_writing_arena:
                return self._arena.read(offset, num_bytes)
            if not 0 <= offset <= len(data) - num_bytes:
                raise FormatError(f"an array of {num_bytes} bytes lies beyond the message")
            return memoryview(data)[offset : offset + num_bytes]

        try:
            message = FORMAT.decode(header, get)
        except FormatError as error:
            raise WireError(str(error)) from error
        if not isinstance(message, dict):
            raise WireError(f"a message is a map, this is a {type(message).__name__}")
        return message
