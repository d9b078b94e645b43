"""Who has connected to a rollout worker and not yet shown its token. Nothing here waits for anybody."""

from __future__ import annotations

import hmac
import logging
import selectors
import socket
import time
from collections import Counter

from rlrun.channel.lane import TOKEN_BYTES, Door, Lane

_GREETING_S = 5.0  # for a token to come in whole
_MAX_WAITING = 64  # one more, and the oldest has to go: env workers send their token at once
logger = logging.getLogger(__name__)


class Visitor:
    """One connection. Example: Visitor(connection, "10.77.0.9"), then `hear` whenever it is readable."""

    def __init__(self, connection: socket.socket, host: str):
        self.connection, self.host = connection, host
        self.ends = time.monotonic() + _GREETING_S
        self.told = b""
        connection.setblocking(False)

    def fileno(self) -> int:
        """For selectors."""
        return self.connection.fileno()

    def hear(self) -> bool:
        """Take in what has come; returns whether nothing more is to be waited for."""
        try:
            part = self.connection.recv(TOKEN_BYTES - len(self.told))
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        self.told += part
        return not part or len(self.told) == TOKEN_BYTES


class Lobby:
    """Those who wait, in the order in which they came. Used by one thread."""

    def __init__(self, door: Door, selector: selectors.BaseSelector):
        self._door, self._selector = door, selector
        self._waiting: dict[Visitor, None] = {}
        self._strangers: Counter[str] = Counter()

    def accept(self, listener: socket.socket) -> None:
        """Let somebody in who knocks at a listener of the door."""
        try:
            connection, address = listener.accept()
        except OSError:
            return  # gone again
        if len(self._waiting) == _MAX_WAITING:
            self._send_away(next(iter(self._waiting)))
        visitor = Visitor(connection, address[0] if listener.family == socket.AF_INET else "this node")
        self._selector.register(visitor, selectors.EVENT_READ)
        self._waiting[visitor] = None

    def hear(self, visitor: Visitor) -> Lane | None:
        """A lane, once the visitor has shown the token; strangers are sent away."""
        if visitor not in self._waiting or not visitor.hear():
            return None
        if not hmac.compare_digest(visitor.told, self._door.address.token):
            self._send_away(visitor)
            return None
        del self._waiting[visitor]
        self._selector.unregister(visitor)
        return self._door.lane(visitor.connection)

    def clear(self) -> None:
        """Send away those who have been silent for too long."""
        now = time.monotonic()
        for visitor in [visitor for visitor in self._waiting if visitor.ends < now]:
            self._send_away(visitor)

    def _send_away(self, visitor: Visitor) -> None:
        """The first one of a host is told in the log, then the 10th, the 100th and so on."""
        del self._waiting[visitor]
        self._selector.unregister(visitor)
        visitor.connection.close()
        self._strangers[visitor.host] += 1
        count = self._strangers[visitor.host]
        if str(count).strip("0") == "1":
            logger.warning(
                "%d connections without the token from %s: closed, nothing else happened", count, visitor.host
            )
