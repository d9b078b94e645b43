"""Sockets and messages between env workers and a policy server: addresses, options, frames.

Large arrays of a message are ZeroMQ frames of their own, sent and received without a copy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from rlrun.edges.actions import ActionChunk
from rlrun.edges.authentication import present_token
from rlrun.edges.frames import Frames
from rlrun.edges.message_format import FormatError, MessageFormat
from rlrun.edges.observations import Observation
from rlrun.system.errors import RunError

HANDSHAKE_S = 10.0  # time limit of a handshake; the server serves other peers meanwhile
MAX_FRAME_BYTES = 1 << 30  # limit of one array; a peer that sends more is disconnected
_NUM_PROBES = 3  # unanswered probes after which the other node counts as lost
_HEARTBEAT_FACTOR = 6  # lost nodes are found first by keepalive, stopped processes by the watchdog
_DOMAIN = b"rlrun"
_FAILURES: dict[int, str] = {
    zmq.EVENT_CLOSED: "nothing listens there, or a firewall drops the connection",
    zmq.EVENT_CONNECT_RETRIED: "nothing listens there, or a firewall drops the connection",
    zmq.EVENT_DISCONNECTED: "the other end closed the connection, or answers no heartbeat",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the other end closed the connection, or did not answer",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the other end does not speak the protocol",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the other end refuses this worker's token",
}
Result = ActionChunk | RunError


class ConnectionLost(Exception):
    """The server has ended, cannot be reached, or was silent for too long."""


@dataclass(frozen=True)
class ServerAddress:
    """rollout worker -> env workers: the addresses of its policy server, with the token of its clients."""

    node: str  # the id of the server's node
    ipc: str  # an abstract Unix socket on that node
    tcp: str  # for other nodes, such as "tcp://10.77.0.1:40123"
    token: bytes = field(repr=False)

    def url_for(self, node: str) -> str:
        """Return the URL for a client on `node`."""
        return self.ipc if node == self.node else self.tcp


def listen(server: zmq.Socket, where: str, lost_after_s: float) -> str:
    """Bind a ROUTER socket. Returns the URL for clients.

    where: such as "tcp://10.77.0.1:*" (any free port). lost_after_s: time after which a silent node counts as lost.
    """
    _set_options(server, lost_after_s)
    server.zap_domain = _DOMAIN
    server.zap_enforce_domain = True
    server.sndhwm = 0  # no limit, since at most one response per client is queued
    server.plain_server = True
    server.bind(where)
    return server.getsockopt_string(zmq.LAST_ENDPOINT)


def _set_options(socket: zmq.Socket, lost_after_s: float) -> None:
    socket.linger = 0
    socket.maxmsgsize = MAX_FRAME_BYTES
    socket.handshake_ivl = round(1000 * HANDSHAKE_S)
    period_s = max(1, round(lost_after_s / (_NUM_PROBES + 1)))
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_cnt = _NUM_PROBES
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = period_s
    socket.tcp_maxrt = round(1000 * lost_after_s)


class Connection:
    """Connection of a policy client to its server; used by one thread."""

    def __init__(self, address: ServerAddress, node: str, lost_after_s: float):
        """node: of this process. Raises ConnectionLost if the server cannot be reached or refuses the token."""
        self.url = address.url_for(node)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _set_options(self._socket, lost_after_s)
        self._socket.reconnect_ivl = -1  # never reconnect: a new server takes the place of a lost one
        self._socket.connect_timeout = round(1000 * HANDSHAKE_S)
        self._socket.sndtimeo = 1000  # sending only queues, and blocks only if the connection has just ended
        if self.url == address.tcp:
            self._socket.heartbeat_ivl = round(1000 * lost_after_s / (_NUM_PROBES + 1))
            self._socket.heartbeat_timeout = round(1000 * lost_after_s * _HEARTBEAT_FACTOR)
        present_token(self._socket, address.token)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | sum(_FAILURES))
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._socket.connect(self.url)
        try:
            self._await_handshake()
        except ConnectionLost:
            self.close()
            raise

    def _await_handshake(self) -> None:
        end = time.monotonic() + 2 * HANDSHAKE_S
        while time.monotonic() < end:
            if self._monitor.poll(1000) and self._check_event() == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
        raise ConnectionLost(f"{self.url}: no connection in {2 * HANDSHAKE_S:.0f} s")

    def _check_event(self) -> int:
        """Return the next event of the socket's monitor. Raises ConnectionLost if the connection has ended."""
        event = recv_monitor_message(self._monitor)["event"]
        if event in _FAILURES:
            raise ConnectionLost(f"{self.url}: {_FAILURES[event]}")
        return event

    def send(self, frames: Sequence[Any]) -> None:
        """Send a message, whose large arrays must not change before the response. Raises ConnectionLost."""
        if self._monitor.poll(0):
            self._check_event()
        try:
            self._socket.send_multipart(frames, copy=False)
        except zmq.Again as error:
            raise ConnectionLost(f"{self.url}: {_FAILURES[zmq.EVENT_DISCONNECTED]}") from error

    def receive(self, timeout_s: float) -> list[zmq.Frame]:
        """Return the next message. Raises ConnectionLost, also if no message comes within `timeout_s`."""
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            ready = dict(self._poller.poll(round(1000 * left)))
            if self._socket in ready:
                return self._socket.recv_multipart(copy=False)
            if self._monitor in ready:
                self._check_event()
        raise ConnectionLost(f"{self.url}: no response for {timeout_s:.0f} s")

    def close(self) -> None:
        """Send queued messages, for at most a second, and disconnect."""
        self._context.destroy(linger=1000)


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
    """rollout -> env: the actions, or an error."""

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
