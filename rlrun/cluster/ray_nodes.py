"""Nodes of a Ray cluster as Ray's state interface lists them, and the health of Ray's services."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from rlrun.cluster.membership import is_listening
from rlrun.system.errors import ExitStatus, RunError
from rlrun.watchdog.node_state import tail

logger = logging.getLogger(__name__)
_HEAD = "node:__internal_head__"
_PERIOD_S = 1.0


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
    address = entry["NodeManagerAddress"]
    port = entry["NodeManagerPort"]
    return RayNode(name, entry["NodeID"], address, num_cpus, num_gpus, _HEAD in resources, port)


def _name(entry: dict[str, Any]) -> str:
    """Return the name of a node; without --node-name, Ray uses its address as its name."""
    given = entry.get("NodeName")
    return given if given and given != entry["NodeManagerAddress"] else entry["NodeManagerHostname"]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True)
class Service:
    """One service of Ray. Example: Service("Ray's head service (GCS)", "10.77.0.1:6379", "gcs_server")."""

    name: str
    address: str
    log: str  # its log file without the suffix


class HealthCheck:
    """Probes the ports of the head's service and of this node's service, at most once a second.

    Without the head's service, Ray starts and finds nothing, and ends the driver after 60 s without an exception.
    Running workers go on until then, which leaves time for a checkpoint.
    """

    def __init__(self, logs: Path | None):
        """Call after ray.init. logs: the folder of a private Ray's logs, which is removed with the run; else None."""
        here = ray.get_runtime_context().get_node_id()
        node = next(entry for entry in ray.nodes() if entry["NodeID"] == here)
        address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
        head = ray.get_runtime_context().gcs_address
        self._services = [
            Service("Ray's head service (GCS)", head, "gcs_server"),
            Service("Ray on this node (raylet)", address, "raylet"),
        ]
        self._logs = logs
        self._next = 0.0
        self.is_lost = False

    def check(self, is_urgent: bool = False) -> None:
        """Raise RunError the first time that a service has ended. Later calls pass, so that the run can be saved.

        is_urgent: probe the ports even if the last probe was less than a second ago.
        """
        if self.is_lost or (time.monotonic() < self._next and not is_urgent):
            return
        self._next = time.monotonic() + _PERIOD_S
        for service in self._services:
            if is_listening(service.address) is False and is_listening(service.address) is False:
                self.is_lost = True
                raise self._gone(service)

    def answers(self) -> bool:
        """Return whether no service has ended; probes them now."""
        if not self.is_lost:
            self.is_lost = any(is_listening(service.address) is False for service in self._services)
        return not self.is_lost

    def _gone(self, service: Service) -> RunError:
        if self._logs is not None:
            logger.info("last lines of %s:\n%s", service.log, tail(self._logs / f"{service.log}.out"))
            remedy = "Read logs/driver-0.log; resume the run."
        else:
            remedy = f"Read {service.log}.out in the log folder of Ray; start Ray again, then resume the run."
        return RunError(
            f"{service.name} at {service.address} has ended.",
            cause="Killed by a person or by the kernel for memory, or its disk is full. Ray cannot go on without it.",
            remedy=remedy,
            exit_status=ExitStatus.worker_lost,
        )
