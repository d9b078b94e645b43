"""The way from an env worker to its rollout worker and back: one connection, messages with their arrays beside them.

A call through Ray costs more than the policy of a small run; here nothing stands between the two processes. On one
node the connection is a Unix socket without a file, else TCP. A message on it::

    4 bytes   number of arrays that follow the message
    4 bytes   length of the message
    8 bytes   for each array: its length
    message   pickled; small arrays lie in it
    arrays

Both ends run the same code and know the token, so pickle is no wider a door than Ray's own.
"""

from __future__ import annotations

import secrets
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.channel.message_pickle import packed, unpacked

_HEAD = struct.Struct("<II")
TOKEN_BYTES = 32
_PROBES = 3  # unanswered ones end a connection whose other node has vanished


class LaneClosed(Exception):
    """The other end is gone, or silent for longer than a message may take."""


@dataclass(frozen=True)
class LaneAddress:
    """rollout worker -> env workers: where it listens.

    Example: LaneAddress("10.77.0.1", 40123, "rlrun-5f0c…", "ab12…", b"…")
    """

    host: str
    port: int
    local_name: str  # of the Unix socket
    node: str  # on which that socket exists
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES), repr=False)


class Lane:
    """One end of a connection; used by one thread at a time."""

    def __init__(self, connection: socket.socket, patience_s: float, hears_always: bool = False):
        """patience_s: how long the other end may neither read nor write while it should. hears_always: what comes while
        something large is sent is taken in, and kept for `receive`; one end must, where both may send at once."""
        self._hears_always = hears_always
        self._heard: deque[Any] = deque()
        connection.settimeout(None)  # the kernel keeps the time: Python would ask for it before each call
        time = struct.pack("@ll", int(patience_s), int(1e6 * (patience_s % 1)))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, time)
        self._connection, self._patience_s = connection, patience_s

    def fileno(self) -> int:
        """For selectors."""
        return self._connection.fileno()

    def send(self, message: Any) -> None:
        """Raises LaneClosed, also when the other end reads nothing for too long."""
        body, arrays = packed(message)
        head = _HEAD.pack(len(arrays), len(body)) + struct.pack(f"<{len(arrays)}Q", *(a.nbytes for a in arrays))
        try:
            self._write([memoryview(head), body, *arrays])
        except OSError as error:
            raise LaneClosed(f"nothing can be sent: {error}") from error

    def receive(self) -> Any:
        """The next message. Raises LaneClosed, also when nothing comes for too long."""
        if self._heard:
            return self._heard.popleft()
        try:
            return self._message()
        except BlockingIOError as error:
            raise LaneClosed(f"nothing came for {self._patience_s:.0f} s") from error
        except OSError as error:
            raise LaneClosed(str(error)) from error

    def close(self) -> None:
        """The other end notices."""
        self._connection.close()

    def _message(self) -> Any:
        num_arrays, num_bytes = _HEAD.unpack(self._read(_HEAD.size))
        sizes = struct.unpack(f"<{num_arrays}Q", self._read(8 * num_arrays)) if num_arrays else ()
        body = self._read(num_bytes)
        return unpacked(body, [self._read(size) for size in sizes])

    def _write(self, parts: Sequence[memoryview]) -> None:
        left = list(parts)
        while left:
            sent = self._sent_hearing(left) if self._hears_always else self._connection.sendmsg(left)
            while left and sent >= left[0].nbytes:
                sent -= left.pop(0).nbytes
            if sent:
                left[0] = left[0][sent:]

    def _sent_hearing(self, parts: Sequence[memoryview]) -> int:
        """Bytes that could be sent; none where the other end wanted to be heard first."""
        try:
            return self._connection.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            either = select.poll()
            either.register(self._connection, select.POLLIN | select.POLLOUT)
            for _, events in either.poll(1000 * self._patience_s):
                if events & select.POLLIN:
                    self._heard.append(self._message())
                return 0
            raise TimeoutError(f"the other end read nothing for {self._patience_s:.0f} s") from None

    def _read(self, num_bytes: int) -> np.ndarray:
        data = np.empty(num_bytes, np.uint8)
        view, done = memoryview(data), 0
        while done < num_bytes:
            count = self._connection.recv_into(view[done:], 0, socket.MSG_WAITALL)
            if count == 0:
                raise ConnectionResetError("the other end closed the connection")
            done += count
        return data


class Door:
    """Where a rollout worker's lanes begin: a TCP port of `host`, and a Unix socket for its own node."""

    def __init__(self, host: str, node: str, lost_after_s: float, patience_s: float):
        """lost_after_s: how long a vanished node may stay unnoticed. patience_s: of the lanes, for a message once it
        has begun."""
        self._lost_after_s, self._patience_s = lost_after_s, patience_s
        tcp = socket.create_server((host, 0))
        unix = socket.socket(socket.AF_UNIX)
        self.address = LaneAddress(host, tcp.getsockname()[1], f"rlrun-{secrets.token_hex(8)}", node)
        unix.bind("\0" + self.address.local_name)
        unix.listen()
        self.listeners = (tcp, unix)
        for listener in self.listeners:
            listener.setblocking(False)

    def lane(self, connection: socket.socket) -> Lane:
        """With somebody who has shown the token."""
        _tune(connection, self._lost_after_s)
        return Lane(connection, self._patience_s)


def connect(address: LaneAddress, node: str, lost_after_s: float, patience_s: float) -> Lane:
    """A lane from a process on `node`, which waits for answers for `patience_s`. Raises LaneClosed."""
    is_here = node == address.node
    try:
        if is_here:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(patience_s)
            connection.connect("\0" + address.local_name)
        else:
            connection = socket.create_connection((address.host, address.port), patience_s)
        _tune(connection, lost_after_s)
        connection.sendall(address.token)
    except OSError as error:
        where = "on its own node" if is_here else f"at {address.host}:{address.port}"
        raise LaneClosed(f"it cannot be reached {where}: {error}") from error
    return Lane(connection, patience_s, hears_always=True)


def _tune(connection: socket.socket, lost_after_s: float) -> None:
    """Small messages go at once, and a node that vanished without a word is noticed."""
    if connection.family == socket.AF_UNIX:
        return
    period_s = max(1, round(lost_after_s / (_PROBES + 1)))
    options = {
        socket.TCP_NODELAY: 1,
        socket.TCP_KEEPIDLE: period_s,
        socket.TCP_KEEPINTVL: period_s,
        socket.TCP_KEEPCNT: _PROBES,
        socket.TCP_USER_TIMEOUT: round(1000 * lost_after_s),
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
