"""Whether packets of full size reach every node of the cluster from here, before anything is asked of it."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import ray

from rlrun.cluster.ray_node import ray_nodes
from rlrun.placement.path_mtu import measure_path, require_path
from rlrun.placement.this_machine import interfaces


def require_paths() -> None:
    """Raises RunError naming both hosts, the sizes and a command where large packets get lost on the way to a node."""
    own = {address for interface in interfaces() for address in interface.addresses}
    ports = {entry["NodeID"]: entry["NodeManagerPort"] for entry in ray.nodes()}
    others = [node for node in ray_nodes() if node.address not in own]
    if not others:
        return
    with ThreadPoolExecutor(len(others)) as pool:
        paths = list(pool.map(lambda node: measure_path(node.address, ports[node.node_id]), others))
    for node, path in zip(others, paths, strict=True):
        require_path(socket.gethostname(), node.name, path)
