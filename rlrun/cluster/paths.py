"""Checks that packets of full size reach the nodes of the cluster from here."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import ray

from rlrun.cluster.ray_node import RayNode, ray_nodes
from rlrun.placement.path_mtu import PathMtu, measure_path, require_path
from rlrun.placement.this_machine import interfaces

_AT_ONCE = 16


def require_paths() -> None:
    """Raise RunError, naming both hosts, the sizes and a command, if large packets get lost on the way to a node."""
    others = [node for node in ray_nodes() if not _is_here(node)]
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        paths = list(pool.map(_path, others))
    for node, path in zip(others, paths, strict=True):
        require_path(socket.gethostname(), node.name, path)


def path_faults(nodes: Sequence[RayNode]) -> Callable[[], list[str]]:
    """Return a function that tries the paths to other nodes and returns a sentence on each that is at fault.

    The ports are looked up now, since Ray may not answer later over such a path.
    """
    ports = {entry["NodeID"]: entry["NodeManagerPort"] for entry in ray.nodes()}
    others = [node for node in nodes if not _is_here(node) and node.node_id in ports]

    def measure() -> list[str]:
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(others)))) as pool:
            paths = list(pool.map(lambda node: measure_path(node.address, ports[node.node_id]), others))
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
    path = None if _is_here(node) else _path(node)
    return path.cause(socket.gethostname(), node.name) if path is not None and path.loses_packets else None


def _path(node: RayNode) -> PathMtu | None:
    ports = {entry["NodeID"]: entry["NodeManagerPort"] for entry in ray.nodes()}
    return measure_path(node.address, ports[node.node_id])


def _is_here(node: RayNode) -> bool:
    return any(node.address in interface.addresses for interface in interfaces())
