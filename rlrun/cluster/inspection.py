"""One inspector on every node of a Ray cluster: measures the node, probes other nodes, tries the collectives."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlrun.cluster.ray_nodes import RayNode
from rlrun.cluster.waits import SLOW_S, slow
from rlrun.config.schema import RunConfig
from rlrun.doctor.cross_node_checks import FREE_PORT, STORE
from rlrun.doctor.facts import ClusterFacts, LinkFacts, NodeFacts, PairFacts, PathFacts
from rlrun.doctor.inspector import Inspector, PortProbe
from rlrun.doctor.measure import LONGEST_S
from rlrun.doctor.node_checks import LATE
from rlrun.doctor.node_request import NodeRequest
from rlrun.doctor.optional_packages import LIMIT_S as PACKAGES_S
from rlrun.doctor.trials import Member, groups, jobs, planned_pairs
from rlrun.placement.plan import Plan
from rlrun.system.machine_load import load_factor, local_load
from rlrun.system.telemetry import mark_alive

_ANSWER_S = 15.0  # limit for starting a process on a busy node, and for a slow disk
_MEASURE_S = _ANSWER_S + LONGEST_S + PACKAGES_S  # a simulator that hangs, and imports that do
_PATH_S = 20.0  # limit for a few paths that lose packets
_CLOSE_S = 2.0
_POLL_S = 1.0

logger = logging.getLogger(__name__)


class RayInspection:
    """Inspectors on the nodes of `assigned`. Reports a node that fails or times out, and asks it no further."""

    def __init__(self, config: RunConfig, assigned: Sequence[NodeRequest], nodes: Sequence[RayNode]):
        self._config = config
        self._jobs = {job.node: job for job in assigned}
        self._unresponsive: dict[str, str] = {}
        self._load = local_load()  # of the busiest host, as far as is known
        entries = {entry["NodeID"]: entry for entry in ray.nodes()}
        self._entries = {node.name: entries[node.node_id] for node in nodes if node.name in self._jobs}
        self._heads = {node.name for node in nodes if node.is_head}
        self._inspectors = {name: self._start(self._jobs[name], entry) for name, entry in self._entries.items()}
        for name in self._jobs.keys() - self._entries.keys():
            self._unresponsive[name] = "it is in the inventory, but not an alive node of the Ray cluster"

    def _start(self, job: NodeRequest, entry: Mapping[str, Any]) -> Any:
        where = NodeAffinitySchedulingStrategy(entry["NodeID"], soft=False)
        store_bytes = entry["Resources"].get("object_store_memory")
        host = ray.remote(Inspector).options(num_cpus=0, scheduling_strategy=where)
        return host.remote(job, int(store_bytes) if store_bytes else None)

    def measure(self, planned: Plan | None) -> ClusterFacts:
        """Measure the nodes, then the links, then the collectives."""
        nodes: dict[str, NodeFacts] = self._ask(lambda node, inspector: inspector.measure.remote(), _MEASURE_S)
        self._load = max([local_load(), *(facts.load for facts in nodes.values())])
        tried = groups(self._config, planned, nodes)
        paths = self._paths() if "mtu" not in self._config.doctor.skip else ()
        links, seen = self._links(planned.slots[0].node if planned else None)
        pairs: list[PairFacts] = []
        for backend, group in tried.items():
            pairs += self._collectives(group, backend, nodes)
        facts = tuple(_with_markers(nodes[name], seen.get(name, {})) for name in self._jobs if name in nodes)
        return ClusterFacts(facts, tuple(links), tuple(pairs), paths, dict(self._unresponsive))

    def close(self) -> None:
        """Let the inspectors remove their files, then end them."""
        closing = [inspector.close.remote() for inspector in self._inspectors.values()]
        ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for inspector in self._inspectors.values():
            ray.kill(inspector)
        self._inspectors.clear()

    # --- paths ------------------------------------------------------------------------------

    def _paths(self) -> tuple[PathFacts, ...]:
        """Measure the path MTU between the nodes of the planned pairs, both ways."""
        pairs = planned_pairs(list(self._inspectors))
        probes: dict[str, list[PortProbe]] = {node: [] for node in self._inspectors}
        for source, target in (*pairs, *((b, a) for a, b in pairs)):
            probes[source].append(self._ray_probes(target)[0])
        answers = self._ask(lambda node, inspector: inspector.paths.remote(probes[node]), _ANSWER_S + _PATH_S)
        return tuple(facts for paths in answers.values() for facts in paths)

    # --- links ------------------------------------------------------------------------------

    def _links(self, first: str | None) -> tuple[list[LinkFacts], dict[str, dict[str, tuple[str, ...]]]]:
        """Probe the ports of the planned pairs, both ways, and list the markers that every node sees."""
        present = list(self._inspectors)
        if len(present) < 2:
            return [], {}
        responders = self._ask(lambda node, inspector: inspector.listen.remote(), _ANSWER_S)
        links: list[LinkFacts] = []
        port = self._config.cluster.store_port
        store = port if first in self._inspectors and port and self._listen_at_store(first, port) else None
        probes: dict[str, list[PortProbe]] = {node: [] for node in responders}
        for a, b in planned_pairs(list(responders)):
            for source, target in ((a, b), (b, a)):
                probes[source].append(self._probe(target, FREE_PORT, responders[target], has_responder=True))
                probes[source] += self._ray_probes(target)
                if target == first and store is not None:
                    probes[source].append(self._probe(target, STORE, store, has_responder=True))
        timeout_s = load_factor(self._load) * self._config.doctor.link_timeout_s
        for facts in self._ask(
            lambda node, inspector: inspector.probe_ports.remote(probes.get(node, []), timeout_s),
            _ANSWER_S + 3 * self._config.doctor.link_timeout_s,
        ).values():
            links += facts
        seen = self._ask(lambda node, inspector: inspector.markers.remote(), _ANSWER_S)
        self._ask(lambda node, inspector: inspector.stop_listening.remote(), _ANSWER_S)
        return links, seen

    def _listen_at_store(self, node: str, port: int) -> bool:
        """Return whether the port could be opened. The facts of the node name the process that holds it."""
        try:
            ray.get(self._inspectors[node].listen.remote(port), timeout=_ANSWER_S)
        except RayTaskError:
            return False
        except RayError as error:
            self._unresponsive[node] = str(error)
            return False
        return True

    def _probe(self, target: str, purpose: str, port: int, has_responder: bool = False) -> PortProbe:
        return PortProbe(target, purpose, self._jobs[target].address, port, has_responder)

    def _ray_probes(self, target: str) -> list[PortProbe]:
        entry = self._entries[target]
        probes = [
            self._probe(target, "Ray node manager", entry["NodeManagerPort"]),
            self._probe(target, "Ray object manager", entry["ObjectManagerPort"]),
        ]
        if target in self._heads:
            address = ray.get_runtime_context().gcs_address
            probes.append(self._probe(target, "Ray GCS", int(address.rpartition(":")[2])))
        return probes

    # --- collectives ------------------------------------------------------------------------

    def _collectives(self, group: Sequence[Member], backend: str, nodes: Mapping[str, NodeFacts]) -> list[PairFacts]:
        """Try an all-reduce of all planned pairs at the same time."""
        present = [m for m in group if m.node in self._inspectors and self._interface(nodes[m.node])]
        if len(present) < 2:
            return []
        first = present[0]
        port = self._config.cluster.store_port or self._ask_one(first.node, "free_port")
        if port is None:
            return []
        address = self._jobs[first.node].address
        link_s = self._config.doctor.link_timeout_s
        here = jobs(
            present,
            backend,
            lambda node: str(self._interface(nodes[node])),
            address,
            port,
            link_s,
            load_factor(self._load),
        )
        deadline_s = here[first.node][0].limit_s / load_factor(self._load) + _ANSWER_S
        answers = self._ask(lambda node, inspector: inspector.all_reduce.remote(here[node]), deadline_s, list(here))
        return [facts for pairs in answers.values() for facts in pairs]

    def _interface(self, node: NodeFacts) -> str | None:
        """Return the interface that a worker would choose, or None if the configured one does not exist."""
        wanted = self._jobs[node.node].interface or node.interface_of(node.address)
        return wanted if wanted in [interface.name for interface in node.interfaces] else None

    # --- asking -----------------------------------------------------------------------------

    def _ask(
        self, question: Callable[[str, Any], Any], deadline_s: float, of: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return the answers by node. A node that fails or times out counts as unresponsive from now on.

        deadline_s: on idle hosts.
        """
        deadline_s *= load_factor(self._load)
        asked = self._inspectors if of is None else {node: self._inspectors[node] for node in of}
        open_refs = {question(node, inspector): node for node, inspector in asked.items()}
        began = time.monotonic()
        is_slow = False
        answers = {}
        while open_refs and (waited_s := time.monotonic() - began) < deadline_s:
            mark_alive()
            if waited_s > SLOW_S and not is_slow:
                is_slow = True
                logger.warning("%s", slow("the doctor's questions", list(open_refs.values()), waited_s, deadline_s))
            ready, _ = ray.wait(list(open_refs), num_returns=1, timeout=min(_POLL_S, deadline_s - waited_s))
            for ref in ready:
                node = open_refs.pop(ref)
                try:
                    answers[node] = ray.get(ref, timeout=_POLL_S)
                except RayTaskError as error:
                    self._unresponsive[node] = f"{type(error.cause).__name__}: {error.cause}"
                except RayError as error:
                    self._unresponsive[node] = str(error).strip().splitlines()[0]
        self._unresponsive |= dict.fromkeys(open_refs.values(), f"{LATE} {deadline_s:.0f} s")
        for node in self._unresponsive:
            self._inspectors.pop(node, None)
        return {node: answers[node] for node in asked if node in answers}

    def _ask_one(self, node: str, method: str) -> Any:
        ask = self._ask(lambda _, inspector: getattr(inspector, method).remote(), _ANSWER_S, [node])
        return ask.get(node)


def _with_markers(node: NodeFacts, seen: Mapping[str, tuple[str, ...]]) -> NodeFacts:
    folders = (dataclasses.replace(folder, seen=seen.get(folder.purpose, ())) for folder in node.folders)
    return dataclasses.replace(node, folders=tuple(folders))
