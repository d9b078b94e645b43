"""Works on one node for the doctor: measures it, answers and calls other nodes, takes part in collectives."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rlrun.doctor import collective, links, measure
from rlrun.doctor.assignment import Assignment
from rlrun.doctor.facts import LinkFacts, NodeFacts, PairFacts, PathFacts
from rlrun.placement.path_mtu import measure_path
from rlrun.system.ports import free_port


class Inspector:
    """A plain object; the cluster package puts one on every node. `close` takes back whatever it left there."""

    def __init__(self, assignment: Assignment, object_store_bytes: int | None = None):
        self.assignment = assignment
        self._object_store_bytes = object_store_bytes
        self._greeters: list[links.Greeter] = []

    def measure(self) -> NodeFacts:
        """Facts of the node."""
        return measure.measure(self.assignment, self._object_store_bytes)

    def listen(self, port: int = 0) -> int:
        """Answer calls on a port of this node, 0: any free one; returns it. Raises OSError where it is taken."""
        greeter = links.Greeter(self.assignment.node, self.assignment.address, port)
        self._greeters.append(greeter)
        return greeter.port

    def dial(self, calls: Sequence[links.Call], timeout_s: float) -> tuple[LinkFacts, ...]:
        """Call other nodes."""
        return links.dial(self.assignment.node, calls, timeout_s)

    def paths(self, calls: Sequence[links.Call]) -> tuple[PathFacts, ...]:
        """How large packets to these nodes may be; those of which nothing can be said are left out."""
        with ThreadPoolExecutor(max(1, len(calls))) as pool:
            found = list(pool.map(lambda call: measure_path(call.address, call.port), calls))
        name = self.assignment.node
        return tuple(PathFacts(name, c.target, path) for c, path in zip(calls, found, strict=True) if path is not None)

    def marks(self) -> dict[str, tuple[str, ...]]:
        """Purpose of a folder -> nodes whose marks are seen in it from here."""
        folders = [folder for folder in self.assignment.folders if folder.purpose in measure.SHARED]
        return {folder.purpose: measure.marks_in(folder) for folder in folders}

    def free_port(self) -> int:
        """A port for the store of the collectives."""
        return free_port(self.assignment.address)

    def all_reduce(self, jobs: Sequence[collective.Job]) -> tuple[PairFacts, ...]:
        """The pairs of this node's members."""
        return collective.all_reduce(jobs)

    def stop_listening(self) -> None:
        """Free the ports of `listen`."""
        for greeter in self._greeters:
            greeter.close()
        self._greeters.clear()

    def close(self) -> None:
        """Stop listening, remove marks."""
        self.stop_listening()
        for folder in self.assignment.folders:
            measure.remove_mark(folder, self.assignment.node)
