"""The token of a policy server, and the thread that admits the run's clients by it and reports all other peers."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import struct
import threading
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from rlrun.system.telemetry import Telemetry

_USER = b"rlrun"  # PLAIN needs a user name with the password
_ZAP_ADDRESS = "inproc://zeromq.zap.01"  # libzmq asks here whether a peer is admitted (ZAP, RFC 27)
_ZAP_VERSION = b"1.0"
_PEERCRED = struct.Struct("iII")  # pid, uid, gid
EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_ALREADY_REPORTED = "reported where its token was refused"
_DISCONNECT_REASONS: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "said nothing, or hung up",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "does not speak the protocol",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: _ALREADY_REPORTED,
}
logger = logging.getLogger(__name__)


def new_token() -> bytes:
    """Return a random token for a policy server and its clients. Messages are not encrypted."""
    return secrets.token_hex(32).encode()


def present_token(client: zmq.Socket, token: bytes) -> None:
    """Let a client's socket send the token of its server as a password; before it connects."""
    client.plain_username = _USER
    client.plain_password = token


class Authenticator(threading.Thread):
    """Thread that answers libzmq's ZAP requests for the sockets of a context, and watches their connections.

    It is a separate thread, so that peers are admitted while the server's thread runs the policy. A connection that
    ends without a client's message is a stranger's; strangers are counted, and logged with their hosts.
    """

    def __init__(self, context: zmq.Context, servers: Sequence[zmq.Socket], token: bytes, telemetry: Telemetry):
        """servers: sockets that will listen. token: of their clients."""
        super().__init__(name="authenticator", daemon=True)
        self._token = token
        self._telemetry = telemetry
        self._zap_socket = context.socket(zmq.REP)
        self._zap_socket.linger = 0
        self._zap_socket.bind(_ZAP_ADDRESS)
        self._monitors = [server.get_monitor_socket(EVENTS) for server in servers]
        self._hosts: dict[int, str] = {}  # connections without a message yet, by file descriptor
        self._reason = ""  # why the next connection that ends was refused
        self._counts: Counter[str] = Counter()
        self._closing = os.eventfd(0)
        self.start()

    def mark_client(self, descriptor: int) -> None:
        """Record that a client's message came over this connection."""
        self._hosts.pop(descriptor, None)

    def report(self, host: str, what: str) -> None:
        """Count a refused connection or message; the 1st, 10th, 100th … of each host is logged."""
        self._counts[host] += 1
        count = self._counts[host]
        self._telemetry.count("strangers", is_progress=False)
        if str(count).strip("0") == "1":
            logger.warning("%d refused connections or messages from %s; the last one: %s", count, host, what)

    def close(self) -> None:
        """End the thread, and close its sockets."""
        os.eventfd_write(self._closing, 1)
        self.join(timeout=5)

    def run(self) -> None:
        """Run until `close`. If the thread fails earlier, the failure is in the worker's telemetry."""
        try:
            self._serve()
        except BaseException:
            self._telemetry.fail(traceback.format_exc())
            raise

    def _serve(self) -> None:
        poller = zmq.Poller()
        for source in (self._zap_socket, *self._monitors, self._closing):
            poller.register(source, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(10_000))
            if self._zap_socket in ready:
                self._answer_zap(self._zap_socket.recv_multipart())
            for monitor in self._monitors:
                if monitor in ready:
                    self._handle_event(recv_monitor_message(monitor))
            if self._closing in ready:
                for source in (self._zap_socket, *self._monitors):
                    source.close()
                os.close(self._closing)
                return

    def _answer_zap(self, question: list[bytes]) -> None:
        _, request, _, address, _, mechanism, *credentials = question
        is_admitted = mechanism == b"PLAIN" and hmac.compare_digest(credentials[-1], self._token)
        status = (b"200", b"OK") if is_admitted else (b"400", b"wrong token")
        self._zap_socket.send_multipart([_ZAP_VERSION, request, *status, b"", b""])
        if not is_admitted:
            here, _, ids = address.decode().partition("localhost:")  # "localhost:UID:GID:PID" of a Unix socket
            self.report(_describe_user(int(ids.split(":")[0])) if ids else here, "has a wrong token")

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        descriptor = event["value"]
        if kind == zmq.EVENT_ACCEPTED:
            self._hosts[descriptor] = peer_host(descriptor)
        elif kind == zmq.EVENT_DISCONNECTED:
            host = self._hosts.pop(descriptor, None)
            if host is not None and self._reason != _ALREADY_REPORTED:
                self.report(host, self._reason or "sent an invalid message, or too large a one")
            self._reason = ""
        else:
            self._reason = _DISCONNECT_REASONS[kind]


def peer_host(descriptor: int) -> str:
    """Return the peer of a connection: its host, or its user if it is on this node."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family != socket.AF_UNIX:
                return connection.getpeername()[0]
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    except OSError:  # closed already
        return "an unknown host"
    return _describe_user(_PEERCRED.unpack(credentials)[1])


def _describe_user(number: int) -> str:
    return f"user {number} of this node"
