"""The live inventory: a task on every node of the Ray cluster reports the node's hardware."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlrun.cluster.membership import is_listening
from rlrun.cluster.ray_nodes import RayNode, ray_nodes
from rlrun.cluster.waits import wait_for
from rlrun.config.schema import RunConfig
from rlrun.placement.inventory import Inventory, NodeInfo
from rlrun.placement.network import PathMtu, measure_path, require_path
from rlrun.placement.this_machine import interfaces, known_inventory, spill_space, this_node
from rlrun.system.machine_load import load_factor, local_load
from rlrun.system.telemetry import Telemetry

_SETUP_S = 60.0  # starting a worker process on a busy node
_AT_ONCE = 16


def probe_nodes(nodes: Sequence[RayNode], deadline_s: float = _SETUP_S) -> list[NodeInfo]:
    """Measure all nodes at the same time. Returns them in the order of `nodes`. Raises RunError for late nodes.

    deadline_s: on an idle machine.
    """
    labels = {}
    for node in nodes:
        where = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        ask = ray.remote(measure).options(num_cpus=0, max_retries=0, scheduling_strategy=where)
        labels[ask.remote(node)] = f"{node.name} ({node.address}).probe"
    limit_s = load_factor(local_load()) * deadline_s
    return wait_for(labels, "reports of the nodes", limit_s, Telemetry("driver/0"))


def live_inventory(nodes: Sequence[RayNode]) -> Inventory:
    """Return the inventory for the planner, in the order of `nodes`."""
    head = next((node.address for node in nodes if node.is_head), "?")
    return Inventory(tuple(probe_nodes(nodes)), f"Ray cluster of {head}")


def inventory_for(config: RunConfig, nodes: Sequence[RayNode]) -> Inventory:
    """Return the inventory of these nodes: from `placement.inventory` if it is set, else measured."""
    if config.placement.inventory is None:
        return live_inventory(nodes)
    names = {node.name for node in nodes}
    known = known_inventory(config)
    return Inventory(tuple(node for node in known.nodes if node.name in names), known.source)


def peer_of(node: RayNode, nodes: Sequence[RayNode]) -> str | None:
    """Return the address of a node's peer: the head, or for the head another node; None if it is alone."""
    others = [other for other in nodes if other.node_id != node.node_id]
    heads = [other for other in others if other.is_head]
    return (heads or others)[0].address if others else None


def measure(node: RayNode) -> NodeInfo:
    """Measure this node for the planner; runs in a task on it."""
    raylet = _raylet_options()
    spill_dir = raylet.get("fallback_directory")
    return replace(
        this_node(),
        name=node.name,
        address=node.address,
        temp_dir=raylet.get("temp_dir"),
        object_store_bytes=int(raylet["object_store_memory"]) if "object_store_memory" in raylet else None,
        spill_dir=spill_dir,
        spill_free_bytes=spill_space(spill_dir) if spill_dir and Path(spill_dir).is_dir() else None,
    )


def _raylet_options() -> dict[str, str]:
    """Return the options of the raylet that started this process. Example: {"temp_dir": "/tmp/ray", …}."""
    parent = psutil.Process().parent()
    words = parent.cmdline() if parent is not None else []
    return dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)


def require_paths() -> None:
    """Raise RunError, naming both hosts, the sizes and a command, if large packets get lost on the way to a node."""
    others = [node for node in ray_nodes() if not is_here(node)]
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        paths = list(pool.map(_path, others))
    for node, path in zip(others, paths, strict=True):
        require_path(socket.gethostname(), node.name, path)


def path_faults(nodes: Sequence[RayNode]) -> Callable[[], list[str]]:
    """Return a function that tries the paths to other nodes and returns a sentence on each that is at fault."""
    others = [node for node in nodes if not is_here(node)]

    def measure() -> list[str]:
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(others)))) as pool:
            paths = list(pool.map(_path, others))
        return [fault for node, path in zip(others, paths, strict=True) if (fault := _fault(node, path))]

    return measure


def _fault(node: RayNode, path: PathMtu | None) -> str:
    """Return a sentence on a path that loses or delays packets; "" for another one, or an unknown one."""
    here = socket.gethostname()
    if path is not None and path.loses_packets:
        return f"the network loses large packets: {path.cause(here, node.name)}"
    return f"the network is slow: {path.delay(here, node.name)}" if path is not None and path.is_slow else ""


def path_fault(node: RayNode) -> str | None:
    """Return a sentence if full-size packets to a node get lost; None if they arrive, or that cannot be determined."""
    path = None if is_here(node) else _path(node)
    return path.cause(socket.gethostname(), node.name) if path is not None and path.loses_packets else None


def link_tries(nodes: Sequence[RayNode]) -> dict[str, Callable[[], bool]]:
    """Return, by the name of each link to another node, what tries whether anything answers there; see LinkHistory.

    A node whose Ray has ended refuses the connection: that, too, is an answer.
    """
    here = next((node.name for node in nodes if is_here(node)), socket.gethostname())
    return {
        f"the link between {here} and {node.name}": partial(_answers, f"{node.address}:{node.port}")
        for node in nodes
        if not is_here(node)
    }


def node_state(node: RayNode, lost_after_s: float) -> str:
    """Return the state of a node that Ray has given up, and the remedy; lost_after_s: of the configuration."""
    again = "start Ray there again (scripts/start_worker.sh)"
    if _answers(f"{node.address}:{node.port}"):
        why = f"Ray ends on a node that does not answer for node.lost_after_s={lost_after_s:g} s"
        return f"{node.name} ({node.address}) is up, but not in the cluster: {why}; {again}"
    return f"nothing answers at {node.name} ({node.address}): is it its power or its link? Once it is back, {again}"


def _answers(address: str) -> bool:
    return is_listening(address) is not None


def _path(node: RayNode) -> PathMtu | None:
    return measure_path(node.address, node.port)


def is_here(node: RayNode) -> bool:
    """Return whether a node is the one that this process runs on."""
    return any(node.address in interface.addresses for interface in interfaces())
