"""Messages between a worker and its child process, and the shared memory for large arrays of one direction.

A message on the socket::

    4 bytes  b"RLRW"
    2 bytes  version
    2 bytes  0
    4 bytes  length of the header
    8 bytes  length of the arrays that follow the header
    header   a map in the format of rlrun/edges/message_format.py; a large array in it names its offset
    arrays   of the end that does not write to the shared memory; the other end's large arrays lie there

The shared memory has no name, so the kernel frees it when both processes have ended. Needs Python 3.10, numpy and
msgpack.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time
from typing import Any

import numpy as np

from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.message_format import FormatError, MessageFormat
from rlrun.edges.spaces import Spaces

ALIGNMENT_BYTES = 64
VERSION = 3
MAGIC = b"RLRW"
PREFIX = struct.Struct("<4sHHIQ")
MAX_HEADER_BYTES = 1 << 26
MAX_ARRAY_BYTES = 1 << 31
FORMAT = MessageFormat(Frames, ChunkResult, Spaces)


class Arena:
    """Shared memory for the arrays of one message: one end writes them, the other copies them before it answers.

    fd: a file descriptor of `memfd_create`, inherited by the other process. The writing end enlarges the memory
    if a message needs it; the reading end remaps it.
    """

    def __init__(self, fd: int):
        self.fd = fd
        self._used = 0
        self._map: mmap.mmap | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the current mapping in this process."""
        return len(self._map) if self._map is not None else 0

    def reset(self) -> None:
        """Allow the next message to overwrite all arrays."""
        self._used = 0

    def write(self, array: np.ndarray) -> int:
        """Copy a contiguous array into the memory. Returns its offset. Enlarges the memory if needed."""
        offset = -(-self._used // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._used = offset + array.nbytes
        if self._used > self.num_bytes:
            self._remap(max(2 * self.num_bytes, self._used), is_growing=True)
        self._bytes(offset, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        return offset

    def read(self, offset: int, num_bytes: int) -> np.ndarray:
        """Return a copy, uint8 [num_bytes]. Raises ValueError for a range outside the memory."""
        if offset < 0 or num_bytes < 0:
            raise ValueError(f"negative range {offset}, {num_bytes}")
        if offset + num_bytes > self.num_bytes:
            self._remap(os.fstat(self.fd).st_size, is_growing=False)
        if offset + num_bytes > self.num_bytes:
            raise ValueError(f"bytes {offset} to {offset + num_bytes} exceed the {self.num_bytes} shared bytes")
        return self._bytes(offset, num_bytes).copy()

    def _bytes(self, offset: int, num_bytes: int) -> np.ndarray:
        """Return a view of the mapped bytes."""
        mapped = b"" if self._map is None else self._map  # an empty file cannot be mapped
        return np.frombuffer(mapped, np.uint8, num_bytes, offset)

    def _remap(self, num_bytes: int, is_growing: bool) -> None:
        if is_growing:
            os.ftruncate(self.fd, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._map = None  # arrays that view the old mapping keep it alive
        size = os.fstat(self.fd).st_size
        self._map = mmap.mmap(self.fd, size) if size else None

    def close(self) -> None:
        """Unmap the memory and close the descriptor."""
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class WireError(Exception):
    """The other end sent an invalid message, or one of another version."""


class WireClosed(WireError):
    """The other end has closed the connection."""


class WireTimeout(WireError):
    """The other end did not send, or did not read, within the timeout."""


class Channel:
    """One end of the connection. The end that writes the arena puts its large arrays there; the other reads them.

    Example::

        channel.send({"call": "reset", "seeds": np.arange(4)}, timeout_s=10)
        channel.receive(timeout_s=60)  # {"answer": …}
    """

    def __init__(self, connection: socket.socket, arena: Arena, is_writing_arena: bool):
        self._connection = connection
        self._arena = arena
        self._is_writing_arena = is_writing_arena

    def send(self, message: dict[str, Any], timeout_s: float | None) -> None:
        """Send a message. Raises WireTimeout if it is not read within `timeout_s` (None: no limit), WireClosed."""
        header, buffers = self._encode(message)
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
        """Wait up to `timeout_s` for data. Returns True if there is some, or if the other end has closed."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def receive(self, timeout_s: float | None) -> dict[str, Any]:
        """Return the next message. Raises WireTimeout (None: no limit), WireClosed, WireError for invalid data.

        After WireTimeout the rest of a message may follow, so nothing more can be received.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        prefix = self._read(PREFIX.size, deadline)
        magic, version, _, num_header_bytes, num_array_bytes = PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise WireError(f"a message cannot begin with {bytes(prefix)[:8]!r}")
        if version != VERSION:
            raise WireError(f"the other end has version {version} of the protocol, this one {VERSION}")
        if num_header_bytes > MAX_HEADER_BYTES or num_array_bytes > MAX_ARRAY_BYTES:
            raise WireError(f"a message of {num_header_bytes} + {num_array_bytes} bytes exceeds the limits")
        header = self._read(num_header_bytes, deadline)
        return self._decode(header, self._read(num_array_bytes, deadline))

    def _read(self, num_bytes: int, deadline: float | None) -> bytearray:
        data = bytearray(num_bytes)
        view = memoryview(data)
        done = 0
        while done < num_bytes:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise WireTimeout("no complete message in time")
            self._connection.settimeout(left)
            try:
                count = self._connection.recv_into(view[done:])
            except TimeoutError as error:
                raise WireTimeout("no complete message in time") from error
            except OSError as error:
                raise WireClosed(f"the other end is gone: {error}") from error
            if count == 0:
                raise WireClosed("the other end closed the pipe")
            done += count
        return data

    def _encode(self, message: dict[str, Any]) -> tuple[bytes, list[bytes]]:
        """Return the header, and the bytes of arrays that are sent over the socket."""
        behind: list[bytes] = []
        self._arena.reset()

        def put(array: np.ndarray) -> int:
            if self._is_writing_arena:
                return self._arena.write(array)
            behind.append(array.tobytes())
            return sum(map(len, behind[:-1]))

        return FORMAT.encode(message, put), behind

    def _decode(self, header: bytearray, data: bytearray) -> dict[str, Any]:
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
