"""The doctor's process on one node: measures it, tries ports of other nodes, takes part in collectives."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rlrun.doctor import collective, links, measure
from rlrun.doctor.assignment import Assignment
from rlrun.doctor.facts import LinkFacts, NodeFacts, PairFacts, PathFacts
from rlrun.placement.network import measure_path
from rlrun.system.network import free_port


class Inspector:
    """Measures one node. The cluster package starts one on every node; `close` removes its files and listeners."""

    def __init__(self, assignment: Assignment, object_store_bytes: int | None = None):
        self.assignment = assignment
        self._object_store_bytes = object_store_bytes
        self._greeters: list[links.Responder] = []

    def measure(self) -> NodeFacts:
        """Return the facts of the node."""
        return measure.measure(self.assignment, self._object_store_bytes)

    def listen(self, port: int = 0) -> int:
        """Answer connections on a port of this node (0: any free one). Returns it. Raises OSError if it is taken."""
        responder = links.Responder(self.assignment.node, self.assignment.address, port)
        self._greeters.append(responder)
        return responder.port

    def probe_ports(self, probes: Sequence[links.PortProbe], timeout_s: float) -> tuple[LinkFacts, ...]:
        """Connect to ports of other nodes."""
        return links.probe_ports(self.assignment.node, probes, timeout_s)

    def paths(self, probes: Sequence[links.PortProbe]) -> tuple[PathFacts, ...]:
        """Measure the path MTU to these nodes; leaves out paths that cannot be measured."""
        with ThreadPoolExecutor(max(1, len(probes))) as pool:
            found = list(pool.map(lambda probe: measure_path(probe.address, probe.port), probes))
        name = self.assignment.node
        return tuple(PathFacts(name, p.target, path) for p, path in zip(probes, found, strict=True) if path is not None)

    def markers(self) -> dict[str, tuple[str, ...]]:
        """Map the purpose of a folder to the nodes whose marker files are visible in it."""
        folders = [folder for folder in self.assignment.folders if folder.purpose in measure.SHARED]
        return {folder.purpose: measure.markers_in(folder) for folder in folders}

    def free_port(self) -> int:
        """Return a free port for the store of the collectives."""
        return free_port(self.assignment.address)

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
        for folder in self.assignment.folders:
            measure.remove_marker(folder, self.assignment.node)
