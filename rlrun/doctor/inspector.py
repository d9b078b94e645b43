"""The doctor's process on one node: measures it, tries ports of other nodes, takes part in collectives."""

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

from rlrun.doctor import collective, measure
from rlrun.doctor.facts import LinkFacts, NodeFacts, PairFacts, PathFacts
from rlrun.doctor.node_request import NodeRequest
from rlrun.placement.network import measure_path
from rlrun.system.network import free_port

_BACKLOG = 64
_MAX_PROBES = 64  # at one time
_RESPONSE_BYTES = 4096
_CLOSE_S = 1.0


@dataclass(frozen=True)
class PortProbe:
    """A port to try. Example: PortProbe("sim", "Ray object manager", "10.77.0.2", 34567, has_responder=False)."""

    target: str
    purpose: str
    address: str
    port: int
    has_responder: bool


class Responder:
    """Answers every connection with one line: the node's name and the seconds of its clock."""

    def __init__(self, node: str, address: str, port: int = 0):
        """Listen on `address`. Raises OSError if the port is taken or the address is not one of this node."""
        self._node = node
        self._socket = socket.create_server((address, port), backlog=_BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._answer, name="responder", daemon=True)
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
                    continue  # the client closed the connection

    def close(self) -> None:
        """Stop answering and free the port; `shutdown` first, since a thread in accept would hold it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=_CLOSE_S)


def probe_ports(source: str, probes: Sequence[PortProbe], timeout_s: float) -> tuple[LinkFacts, ...]:
    """Connect to all ports at the same time; takes at most about `timeout_s` for every 64 of them."""
    if not probes:
        return ()
    with ThreadPoolExecutor(min(_MAX_PROBES, len(probes))) as pool:
        return tuple(pool.map(lambda probe: _probe(source, probe, timeout_s), probes))


def _probe(source: str, probe: PortProbe, timeout_s: float) -> LinkFacts:
    started = time.perf_counter()
    sent_s = time.time()
    facts: dict[str, Any] = {"source": source, "target": probe.target, "purpose": probe.purpose}
    facts |= {"address": probe.address, "port": probe.port, "source_address": source_address(probe.address)}
    try:
        with socket.create_connection((probe.address, probe.port), timeout=timeout_s) as connection:
            error, skew_s = _response(connection, probe, sent_s) if probe.has_responder else (None, None)
    except OSError as fault:
        return LinkFacts(**facts, error=_words(fault))
    took = 1000 * (time.perf_counter() - started)
    return LinkFacts(**facts, error=error, milliseconds=took, skew_s=skew_s)


def source_address(address: str) -> str:
    """Return this node's source address for packets to `address`; "" without a route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _response(connection: socket.socket, probe: PortProbe, sent_s: float) -> tuple[str | None, float | None]:
    """Return (error, clock of the target minus ours); the target read its clock between `sent_s` and now."""
    text = connection.makefile("rb").readline(_RESPONSE_BYTES)
    received_s = time.time()
    try:
        response = json.loads(text)
    except ValueError:
        return "answered by another program", None
    if response["node"] != probe.target:
        return f"answered by node {response['node']}", None
    return None, response["time_s"] - (sent_s + received_s) / 2


def _words(fault: OSError) -> str:
    if isinstance(fault, ConnectionRefusedError):
        return "refused"
    if isinstance(fault, TimeoutError):
        return "no answer"
    return fault.strerror or str(fault)


class Inspector:
    """Measures one node. The cluster package starts one on every node; `close` removes its files and listeners."""

    def __init__(self, node_request: NodeRequest, object_store_bytes: int | None = None):
        self.request = node_request
        self._object_store_bytes = object_store_bytes
        self._greeters: list[Responder] = []

    def measure(self) -> NodeFacts:
        """Return the facts of the node."""
        return measure.measure(self.request, self._object_store_bytes)

    def listen(self, port: int = 0) -> int:
        """Answer connections on a port of this node (0: any free one). Returns it. Raises OSError if it is taken."""
        responder = Responder(self.request.node, self.request.address, port)
        self._greeters.append(responder)
        return responder.port

    def probe_ports(self, probes: Sequence[PortProbe], timeout_s: float) -> tuple[LinkFacts, ...]:
        """Connect to ports of other nodes."""
        return probe_ports(self.request.node, probes, timeout_s)

    def paths(self, probes: Sequence[PortProbe]) -> tuple[PathFacts, ...]:
        """Measure the path MTU to these nodes; leaves out paths that cannot be measured."""
        with ThreadPoolExecutor(max(1, len(probes))) as pool:
            measured = list(pool.map(lambda probe: measure_path(probe.address, probe.port), probes))
        name = self.request.node
        return tuple(
            PathFacts(name, p.target, path) for p, path in zip(probes, measured, strict=True) if path is not None
        )

    def markers(self) -> dict[str, tuple[str, ...]]:
        """Map the purpose of a folder to the nodes whose marker files are visible in it."""
        folders = [folder for folder in self.request.folders if folder.purpose in measure.SHARED]
        return {folder.purpose: measure.markers_in(folder) for folder in folders}

    def free_port(self) -> int:
        """Return a free port for the store of the collectives."""
        return free_port(self.request.address)

    def all_reduce(self, jobs: Sequence[collective.Job]) -> tuple[PairFacts, ...]:
        """Try the pairs of this node's members."""
        return collective.all_reduce(jobs)

    def stop_listening(self) -> None:
        """Close the ports that `listen` opened."""
        for responder in self._greeters:
            responder.close()
        self._greeters.clear()

    def close(self) -> None:
        """Stop listening and remove marker files."""
        self.stop_listening()
        for folder in self.request.folders:
            measure.remove_marker(folder, self.request.node)
