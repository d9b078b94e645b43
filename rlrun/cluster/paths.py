"""Checks whether packets reach the other nodes of the cluster from here: at all, of full size, and in time."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rlrun.cluster.membership import is_listening
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
    """Return a function that tries the paths to other nodes and returns a sentence on each that is at fault."""
    others = [node for node in nodes if not _is_here(node)]

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
    path = None if _is_here(node) else _path(node)
    return path.cause(socket.gethostname(), node.name) if path is not None and path.loses_packets else None


def link_tries(nodes: Sequence[RayNode]) -> dict[str, Callable[[], bool]]:
    """Return, by the name of each link to another node, what tries whether anything answers there; see LinkHistory.

    A node whose Ray has ended refuses the connection: that, too, is an answer.
    """
    here = next((node.name for node in nodes if _is_here(node)), socket.gethostname())
    return {
        f"the link between {here} and {node.name}": partial(_answers, f"{node.address}:{node.port}")
        for node in nodes
        if not _is_here(node)
    }


def whereabouts(node: RayNode, lost_after_s: float) -> str:
    """Return what has become of a node that Ray has given up, and what to do; lost_after_s: of the configuration."""
    again = "start Ray there again (scripts/start_worker.sh)"
    if _answers(f"{node.address}:{node.port}"):
        why = f"Ray ends on a node that does not answer for node.lost_after_s={lost_after_s:g} s"
        return f"{node.name} ({node.address}) is up, but not in the cluster: {why}; {again}"
    return f"nothing answers at {node.name} ({node.address}): is it its power or its link? Once it is back, {again}"


def _answers(address: str) -> bool:
    return is_listening(address) is not None


def _path(node: RayNode) -> PathMtu | None:
    return measure_path(node.address, node.port)


def _is_here(node: RayNode) -> bool:
    return any(node.address in interface.addresses for interface in interfaces())
