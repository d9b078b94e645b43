"""The nodes of the Ray cluster that this process has joined, in a stable order."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import ray

_HEAD = "node:__internal_head__"


@dataclass(frozen=True)
class RayNode:
    """A living node. Example: RayNode("sim-0", "2704790c40…", "10.77.0.2", num_cpus=64, num_gpus=8, is_head=False)."""

    name: str  # its --node-name, else its host name
    node_id: str
    address: str
    num_cpus: int  # declared to Ray
    num_gpus: int
    is_head: bool
    port: int = 0  # of its node manager


def ray_nodes() -> list[RayNode]:
    """Return the living nodes: the head first, then by name, with numbers by value (sim-2 before sim-10)."""
    living = [entry for entry in ray.nodes() if entry["Alive"]]
    names = Counter(_name(entry) for entry in living)
    nodes = [_node(entry, is_shared=names[_name(entry)] > 1) for entry in living]
    return sorted(nodes, key=lambda node: (not node.is_head, _natural(node.name), node.node_id))


def _node(entry: dict[str, Any], is_shared: bool) -> RayNode:
    resources = entry["Resources"]
    name = f"{_name(entry)}@{entry['NodeManagerAddress']}:{entry['NodeManagerPort']}" if is_shared else _name(entry)
    num_cpus, num_gpus = (int(resources.get(kind, 0)) for kind in ("CPU", "GPU"))
    address, port = entry["NodeManagerAddress"], entry["NodeManagerPort"]
    return RayNode(name, entry["NodeID"], address, num_cpus, num_gpus, _HEAD in resources, port)


def _name(entry: dict[str, Any]) -> str:
    """Return the name of a node; without --node-name, Ray uses its address as its name."""
    given = entry.get("NodeName")
    return given if given and given != entry["NodeManagerAddress"] else entry["NodeManagerHostname"]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
