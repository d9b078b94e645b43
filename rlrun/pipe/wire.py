"""Messages between a worker and its other process: a fixed prefix, a msgpack header, raw arrays. Nothing is pickled.

A message on the socket::

    4 bytes  b"RLRW"
    2 bytes  version
    2 bytes  0
    4 bytes  length of the header
    8 bytes  length of the array bytes that follow the header
    header   msgpack map; an array in it is extension 1 with [dtype, shape, place, offset],
             place 0: offset in the bytes behind the header, place 1: offset in the shared memory

Needs Python 3.10, numpy and msgpack.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Any

import msgpack
import numpy as np

from rlrun.pipe.arena import SMALLEST_BYTES, Arena

VERSION = 1
MAGIC = b"RLRW"
PREFIX = struct.Struct("<4sHHIQ")
MAX_HEADER_BYTES = 1 << 26
MAX_ARRAY_BYTES = 1 << 31
ARRAY = 1  # msgpack extension
IN_PIPE, IN_ARENA = 0, 1
KINDS = "biuf"  # booleans and numbers; no objects, no strings


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
        buffers: list[bytes] = []
        self._arena.reset()

        def pack(value: Any) -> Any:
            if isinstance(value, np.generic):
                return value.item()
            if not isinstance(value, np.ndarray) or value.dtype.kind not in KINDS:
                raise TypeError(f"{type(value).__name__} cannot travel: {value!r}")
            array = np.ascontiguousarray(value)
            if self._is_writing_arena and array.nbytes >= SMALLEST_BYTES:
                where = [IN_ARENA, self._arena.write(array)]
            else:
                where = [IN_PIPE, sum(len(buffer) for buffer in buffers)]
                buffers.append(array.tobytes())
            return msgpack.ExtType(ARRAY, msgpack.packb([array.dtype.str, list(value.shape), *where]))

        return msgpack.packb(message, default=pack), buffers

    def _unpacked(self, header: bytearray, data: bytearray) -> dict[str, Any]:
        def unpack(code: int, packed: bytes) -> np.ndarray:
            if code != ARRAY:
                raise WireError(f"unknown extension {code}")
            name, shape, place, offset = msgpack.unpackb(packed)
            dtype = np.dtype(name)
            if dtype.kind not in KINDS or any(size < 0 for size in shape):
                raise WireError(f"an array of {name} {shape} cannot travel")
            num_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            if place == IN_ARENA:
                return self._arena.read(offset, num_bytes).view(dtype).reshape(shape)
            if not 0 <= offset <= len(data) - num_bytes:
                raise WireError(f"an array of {num_bytes} bytes lies beyond the message")
            return np.frombuffer(data, dtype, num_bytes // dtype.itemsize, offset).reshape(shape)

        try:
            message = msgpack.unpackb(bytes(header), ext_hook=unpack, strict_map_key=False)
        except WireError:
            raise
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise WireError(f"the header cannot be read: {error}") from error
        if not isinstance(message, dict):
            raise WireError(f"a message is a map, this is a {type(message).__name__}")
        return message
