"""How the two ends of a connection know each other: CURVE keys, which also encrypt, or a token alone.

A policy server makes them when it starts; the client's half travels to the env workers through Ray.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import zmq
from zmq.utils import z85

_USER = b"rlrun"  # PLAIN wants a name beside the password


class ClientKeys(Protocol):
    """The half of the policy clients."""

    def apply(self, socket: zmq.Socket) -> None:
        """Set the options of a client's socket, before it connects."""


class ServerKeys(Protocol):
    """The half of the policy server."""

    @property
    def client(self) -> ClientKeys:
        """What a client needs."""

    def apply(self, socket: zmq.Socket) -> None:
        """Set the options of a server's socket, before it binds."""

    def admits(self, mechanism: bytes, credentials: Sequence[bytes]) -> bool:
        """Whether a peer with these credentials is one of the run's clients."""


@dataclass(frozen=True)
class CurveClientKeys:
    """The client's pair and the server's public key."""

    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)

    def apply(self, socket: zmq.Socket) -> None:
        socket.curve_serverkey = self.server_public
        socket.curve_publickey, socket.curve_secretkey = self.public, self.secret


class CurveKeys:
    """Authenticates both ends and encrypts what they send."""

    def __init__(self) -> None:
        public, self._secret = zmq.curve_keypair()
        self.client = CurveClientKeys(public, *zmq.curve_keypair())

    def apply(self, socket: zmq.Socket) -> None:
        socket.curve_server = True
        socket.curve_secretkey = self._secret

    def admits(self, mechanism: bytes, credentials: Sequence[bytes]) -> bool:
        return mechanism == b"CURVE" and list(credentials) == [z85.decode(self.client.public)]


@dataclass(frozen=True)
class TokenClient:
    """The token of the server."""

    token: bytes = field(repr=False)

    def apply(self, socket: zmq.Socket) -> None:
        socket.plain_username, socket.plain_password = _USER, self.token


class Token:
    """Authenticates the client by a random token, and encrypts nothing: for links that are trusted."""

    def __init__(self) -> None:
        self.client = TokenClient(secrets.token_hex(32).encode())

    def apply(self, socket: zmq.Socket) -> None:
        socket.plain_server = True

    def admits(self, mechanism: bytes, credentials: Sequence[bytes]) -> bool:
        return mechanism == b"PLAIN" and hmac.compare_digest(credentials[-1], self.client.token)
