"""Authentication of the two ends of a connection: by CURVE keys, which also encrypt, or by a token.

A policy server makes its keys when it starts; Ray carries the client's half to the env workers.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import zmq
from zmq.utils import z85

_USER = b"rlrun"  # PLAIN needs a user name with the password


class ClientKeys(Protocol):
    """The policy clients' half of the keys."""

    def apply(self, socket: zmq.Socket) -> None:
        """Set the options of a client's socket, before it connects."""


class ServerKeys(Protocol):
    """The policy server's half of the keys."""

    @property
    def client(self) -> ClientKeys:
        """Return the clients' half."""

    def apply(self, socket: zmq.Socket) -> None:
        """Set the options of a server's socket, before it binds."""

    def admits(self, mechanism: bytes, credentials: Sequence[bytes]) -> bool:
        """Return whether a peer with these credentials is one of the run's clients."""


@dataclass(frozen=True)
class CurveClientKeys:
    """The client's key pair and the server's public key."""

    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)

    def apply(self, socket: zmq.Socket) -> None:
        socket.curve_serverkey = self.server_public
        socket.curve_publickey, socket.curve_secretkey = self.public, self.secret


class CurveKeys:
    """CURVE keys, which authenticate both ends and encrypt their messages."""

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
    """The server's token."""

    token: bytes = field(repr=False)

    def apply(self, socket: zmq.Socket) -> None:
        socket.plain_username, socket.plain_password = _USER, self.token


class Token:
    """A random token, which authenticates the client. Messages are not encrypted: for trusted links."""

    def __init__(self) -> None:
        self.client = TokenClient(secrets.token_hex(32).encode())

    def apply(self, socket: zmq.Socket) -> None:
        socket.plain_server = True

    def admits(self, mechanism: bytes, credentials: Sequence[bytes]) -> bool:
        return mechanism == b"PLAIN" and hmac.compare_digest(credentials[-1], self.client.token)
