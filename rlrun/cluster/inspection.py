"""One inspector on every node of a Ray cluster: they measure, call each other, and try the collectives."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlrun.cluster.ray_node import RayNode
from rlrun.config.schema import RunConfig
from rlrun.doctor.accelerator_checks import FAKE
from rlrun.doctor.assignment import Assignment
from rlrun.doctor.collective import NCCL_S, Job
from rlrun.doctor.drawing_measure import LIMIT_S
from rlrun.doctor.facts import ClusterFacts, FolderFacts, LinkFacts, NodeFacts, PairFacts, PathFacts
from rlrun.doctor.inspector import Inspector
from rlrun.doctor.link_checks import FREE_PORT, STORE
from rlrun.doctor.links import Call
from rlrun.doctor.trials import BACKENDS, Member, members, nodes_of, planned_pairs
from rlrun.observability.telemetry import mark_alive
from rlrun.placement.plan import Plan

_ANSWER_S = 15.0  # for a process to start on a busy node, and for a slow disk
_MEASURE_S = _ANSWER_S + LIMIT_S  # and for a graphics driver that hangs
_PATH_S = 20.0  # for a few paths that lose packets
_CLOSE_S = 2.0


class RayInspection:
    """Inspectors on the nodes of `jobs`. A node that fails or is late is told of, and left out of what follows."""

    def __init__(self, config: RunConfig, jobs: Sequence[Assignment], nodes: Sequence[RayNode]):
        self._config = config
        self._jobs = {job.node: job for job in jobs}
        self._silent: dict[str, str] = {}
        entries = {entry["NodeID"]: entry for entry in ray.nodes()}
        self._entries = {node.name: entries[node.node_id] for node in nodes if node.name in self._jobs}
        self._heads = {node.name for node in nodes if node.is_head}
        self._inspectors = {name: self._start(self._jobs[name], entry) for name, entry in self._entries.items()}
        for name in self._jobs.keys() - self._entries.keys():
            self._silent[name] = "it is in the inventory, but no living node of the Ray cluster"

    def _start(self, job: Assignment, entry: Mapping[str, Any]) -> Any:
        where = NodeAffinitySchedulingStrategy(entry["NodeID"], soft=False)
        store_bytes = entry["Resources"].get("object_store_memory")
        host = ray.remote(num_cpus=0, scheduling_strategy=where)(Inspector)
        return host.remote(job, int(store_bytes) if store_bytes else None)

    def measure(self, planned: Plan | None) -> ClusterFacts:
        """All facts: first of the nodes, then of the links, then of the collectives."""
        nodes: dict[str, NodeFacts] = self._ask(lambda node, inspector: inspector.measure.remote(), _MEASURE_S)
        groups = self._groups(planned, nodes)
        paths = self._paths() if "mtu" not in self._config.doctor.skip else ()
        links, seen = self._links(planned.slot("actor", 0).node if planned else None)
        pairs: list[PairFacts] = []
        for backend, group in groups.items() if len(nodes) > 1 else ():
            pairs += self._collectives(group, backend, nodes)
        facts = tuple(_with_marks(nodes[name], seen.get(name, {})) for name in self._jobs if name in nodes)
        return ClusterFacts(facts, tuple(links), tuple(pairs), paths, dict(self._silent))

    def close(self) -> None:
        """End the inspectors; what they left on their nodes goes first."""
        closing = [inspector.close.remote() for inspector in self._inspectors.values()]
        ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for inspector in self._inspectors.values():
            ray.kill(inspector)
        self._inspectors.clear()

    # --- paths ------------------------------------------------------------------------------

    def _paths(self) -> tuple[PathFacts, ...]:
        """How large packets may be between nodes of the planned pairs, both ways."""
        pairs = planned_pairs(list(self._inspectors))
        calls: dict[str, list[Call]] = {node: [] for node in self._inspectors}
        for source, target in (*pairs, *((b, a) for a, b in pairs)):
            calls[source].append(self._ray_calls(target)[0])
        told = self._ask(lambda node, inspector: inspector.paths.remote(calls[node]), _ANSWER_S + _PATH_S)
        return tuple(facts for found in told.values() for facts in found)

    # --- links ------------------------------------------------------------------------------

    def _links(self, first: str | None) -> tuple[list[LinkFacts], dict[str, dict[str, tuple[str, ...]]]]:
        """Calls of the planned pairs, both ways, and the marks that every node sees."""
        present = list(self._inspectors)
        if len(present) < 2:
            return [], {}
        greeters = self._ask(lambda node, inspector: inspector.listen.remote(), _ANSWER_S)
        links, port = [], self._config.cluster.store_port
        has_store = first in self._inspectors and port is not None and self._listen_at_store(first, port)
        calls: dict[str, list[Call]] = {node: [] for node in greeters}
        for a, b in planned_pairs(list(greeters)):
            for source, target in ((a, b), (b, a)):
                calls[source].append(self._call(target, FREE_PORT, greeters[target], has_greeter=True))
                calls[source] += self._ray_calls(target)
                if target == first and has_store:
                    calls[source].append(self._call(target, STORE, port, has_greeter=True))
        timeout_s = self._config.doctor.link_timeout_s
        for told in self._ask(
            lambda node, inspector: inspector.dial.remote(calls.get(node, []), timeout_s), _ANSWER_S + 3 * timeout_s
        ).values():
            links += told
        seen = self._ask(lambda node, inspector: inspector.marks.remote(), _ANSWER_S)
        self._ask(lambda node, inspector: inspector.stop_listening.remote(), _ANSWER_S)
        return links, seen

    def _listen_at_store(self, node: str, port: int) -> bool:
        """Whether the port could be opened. Who holds it is among the facts of the node."""
        try:
            ray.get(self._inspectors[node].listen.remote(port), timeout=_ANSWER_S)
        except RayTaskError:
            return False
        except (RayActorError, GetTimeoutError) as error:
            self._silent[node] = str(error)
            return False
        return True

    def _call(self, target: str, purpose: str, port: int, has_greeter: bool = False) -> Call:
        return Call(target, purpose, self._jobs[target].address, port, has_greeter)

    def _ray_calls(self, target: str) -> list[Call]:
        entry = self._entries[target]
        calls = [
            self._call(target, "Ray node manager", entry["NodeManagerPort"]),
            self._call(target, "Ray object manager", entry["ObjectManagerPort"]),
        ]
        if target in self._heads:
            address = ray.get_runtime_context().gcs_address
            calls.append(self._call(target, "Ray GCS", int(address.rpartition(":")[2])))
        return calls

    # --- collectives ------------------------------------------------------------------------

    def _groups(self, planned: Plan | None, nodes: Mapping[str, NodeFacts]) -> dict[str, list[Member]]:
        """Backend -> who tries it. Accelerators that are declared, not there, know no NCCL."""
        is_real = not any(FAKE in facts.environment for facts in nodes.values())
        return {
            backend: [member for member in members(self._config, planned, backend) if member.node in nodes]
            for backend in (BACKENDS if is_real else BACKENDS[:1])
            if planned is not None and backend not in self._config.doctor.skip
        }

    def _collectives(self, group: Sequence[Member], backend: str, nodes: Mapping[str, NodeFacts]) -> list[PairFacts]:
        """An all-reduce of every planned pair, all at the same time."""
        present = [m for m in group if m.node in self._inspectors and self._interface(nodes[m.node])]
        if len(present) < 2:
            return []
        first = present[0]
        port = self._config.cluster.store_port or self._ask_one(first.node, "free_port")
        if port is None:
            return []
        every = planned_pairs([member.name for member in present])
        link_s = self._config.doctor.link_timeout_s
        jobs = [
            Job(
                member.name,
                [pair for pair in every if member.name in pair],
                backend,
                str(self._interface(nodes[member.node])),
                self._jobs[first.node].address,
                port,
                member is first,
                max(NCCL_S, link_s) if backend == "nccl" else link_s,
                member.accelerator,
            )
            for member in present
        ]
        here = {
            node: [job for job, m in zip(jobs, present, strict=True) if m.node == node] for node in nodes_of(present)
        }
        deadline_s = jobs[0].limit_s + _ANSWER_S
        told = self._ask(lambda node, inspector: inspector.all_reduce.remote(here[node]), deadline_s, list(here))
        return [facts for found in told.values() for facts in found]

    def _interface(self, node: NodeFacts) -> str | None:
        """The interface as a worker would choose it; None where the one that is wanted does not exist."""
        wanted = self._jobs[node.node].interface or node.interface_of(node.address)
        return wanted if wanted in [interface.name for interface in node.interfaces] else None

    # --- asking -----------------------------------------------------------------------------

    def _ask(
        self, question: Callable[[str, Any], Any], deadline_s: float, of: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Answers by node. Who fails or is late is silent from now on."""
        mark_alive()
        asked = self._inspectors if of is None else {node: self._inspectors[node] for node in of}
        refs = {node: question(node, inspector) for node, inspector in asked.items()}
        end = time.monotonic() + deadline_s
        answers = {}
        for node, ref in refs.items():
            try:
                answers[node] = ray.get(ref, timeout=max(0.1, end - time.monotonic()))
            except GetTimeoutError:
                self._silent[node] = f"no answer within {deadline_s:.0f} s"
            except RayTaskError as error:
                self._silent[node] = f"{type(error.cause).__name__}: {error.cause}"
            except RayError as error:
                self._silent[node] = str(error).strip().splitlines()[0]
        for node in self._silent:
            self._inspectors.pop(node, None)
        return answers

    def _ask_one(self, node: str, method: str) -> Any:
        ask = self._ask(lambda _, inspector: getattr(inspector, method).remote(), _ANSWER_S, [node])
        return ask.get(node)


def _with_marks(node: NodeFacts, seen: Mapping[str, tuple[str, ...]]) -> NodeFacts:
    def marked(folder: FolderFacts) -> FolderFacts:
        return dataclasses.replace(folder, seen=seen.get(folder.purpose, ()))

    return dataclasses.replace(node, folders=tuple(marked(folder) for folder in node.folders))
