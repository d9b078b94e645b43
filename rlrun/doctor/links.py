"""TCP between nodes: a greeter that tells its name and its time, and calls to greeters and other ports."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rlrun.doctor.facts import LinkFacts

_BACKLOG = 64
_MAX_CALLS = 64  # at one time
_GREETING_BYTES = 4096
_CLOSE_S = 1.0


@dataclass(frozen=True)
class Call:
    """A port to try. Example: Call("sim", "Ray object manager", "10.77.0.2", 34567, has_greeter=False)."""

    target: str
    purpose: str
    address: str
    port: int
    has_greeter: bool


class Greeter:
    """Answers every connection with one line: the node's name and the seconds of its clock."""

    def __init__(self, node: str, address: str, port: int = 0):
        """Listens on `address`. Raises OSError where the port is taken or the address is not this node's."""
        self._node = node
        self._socket = socket.create_server((address, port), backlog=_BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._answer, name="greeter", daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            with connection:
                line = json.dumps({"node": self._node, "time_s": time.time()})
                try:
                    connection.sendall(line.encode() + b"\n")
                except OSError:
                    continue  # the caller is gone; the next one matters as much

    def close(self) -> None:
        """Stop answering, and free the port: a thread that waits in accept would hold it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=_CLOSE_S)


def dial(source: str, calls: Sequence[Call], timeout_s: float) -> tuple[LinkFacts, ...]:
    """Try every port at the same time; takes at most about `timeout_s` for every 64 of them."""
    if not calls:
        return ()
    with ThreadPoolExecutor(min(_MAX_CALLS, len(calls))) as pool:
        return tuple(pool.map(lambda call: _dial(source, call, timeout_s), calls))


def _dial(source: str, call: Call, timeout_s: float) -> LinkFacts:
    started, sent_s = time.perf_counter(), time.time()
    facts: dict[str, Any] = {"source": source, "target": call.target, "purpose": call.purpose}
    facts |= {"address": call.address, "port": call.port, "source_address": route_starts_at(call.address)}
    try:
        with socket.create_connection((call.address, call.port), timeout=timeout_s) as connection:
            error, skew_s = _greeting(connection, call, sent_s) if call.has_greeter else (None, None)
    except OSError as fault:
        return LinkFacts(**facts, error=_words(fault))
    took = 1000 * (time.perf_counter() - started)
    return LinkFacts(**facts, error=error, milliseconds=took, skew_s=skew_s)


def route_starts_at(address: str) -> str:
    """The address of this node from which the route to `address` starts; "" without a route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _greeting(connection: socket.socket, call: Call, sent_s: float) -> tuple[str | None, float | None]:
    """(what is wrong, clock of the target minus ours); the target read its clock between our two looks."""
    text = connection.makefile("rb").readline(_GREETING_BYTES)
    received_s = time.time()
    try:
        greeting = json.loads(text)
    except ValueError:
        return "answered by another program", None
    if greeting["node"] != call.target:
        return f"answered by node {greeting['node']}", None
    return None, greeting["time_s"] - (sent_s + received_s) / 2


def _words(fault: OSError) -> str:
    if isinstance(fault, ConnectionRefusedError):
        return "refused"
    if isinstance(fault, TimeoutError):
        return "no answer"
    return fault.strerror or str(fault)
