"""Requests of measurements, one per node, derived from the configuration, the machines and the plan if there is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.registry import SIMULATORS
from rlrun.config.schema import ClusterKind, EnvConfig, RunConfig, WeightTransport
from rlrun.config.simulator_spec import simulator_spec
from rlrun.doctor.optional_packages import PackageRequest, needed_packages
from rlrun.placement.inventory import Inventory, NodeInfo
from rlrun.placement.plan import Plan, Slot
from rlrun.system.local_files import folder_for_ray

SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Folder:
    """A folder that the run writes to. Example: Folder("run", "/data/runs/x")."""

    purpose: str
    path: str


@dataclass(frozen=True)
class Input:
    """A file or folder that the run reads. Example: Input("policy.path", "/models/oft")."""

    key: str
    path: str


@dataclass(frozen=True)
class SimulatorRequest:
    """Request of the measurement for the simulator of a node's env workers.

    Example: SimulatorRequest("my_world.node_checks:INSPECTION", "/opt/my/bin/python", {}, EnvConfig())
    """

    inspection: str  # module:ATTRIBUTE of a SimulatorInspection
    python: str  # interpreter of the simulator
    environment: Mapping[str, str]  # variables that the plan sets for env workers there
    env: EnvConfig
    is_measured_at_start: bool = False  # also by a start that measures only what is quick


@dataclass(frozen=True)
class FixedPort:
    """A configured port that a worker opens on this node. Example: FixedPort("cluster.store_port", 29500)."""

    key: str
    port: int


@dataclass(frozen=True)
class NodeRequest:
    """Request of the measurements on a node, by its workers in the run.

    Example: NodeRequest("sim-0", "10.77.0.2", {"env": 4}, None, (Folder("temp", "/tmp"), …), (), True, True)
    """

    node: str
    address: str
    workers: Mapping[str, int]  # role -> number of workers
    interface: str | None  # from the placement; None: looked up on the node
    folders: tuple[Folder, ...]
    inputs: tuple[Input, ...]
    is_thorough: bool  # include measurements that take longer than some tens of milliseconds
    writes_markers: bool  # write marker files into folders that nodes should share
    simulator: SimulatorRequest | None = None  # None: no env workers, or nothing to measure for their simulator
    ports: tuple[FixedPort, ...] = ()
    packages: tuple[PackageRequest, ...] = ()  # optional ones that its workers need


def node_requests(config: RunConfig, inventory: Inventory, plan: Plan | None, is_thorough: bool) -> list[NodeRequest]:
    """Return one request per node: for the nodes of the plan, or for all nodes if there is no plan."""
    used = {slot.node for slot in plan.slots} if plan else {node.name for node in inventory.nodes}
    nodes = [node for node in inventory.nodes if node.name in used]
    return [_assignment(config, node, plan, is_thorough, writes_markers=len(nodes) > 1) for node in nodes]


def _assignment(
    config: RunConfig, node: NodeInfo, plan: Plan | None, is_thorough: bool, writes_markers: bool
) -> NodeRequest:
    slots = [slot for slot in plan.slots if slot.node == node.name] if plan else []
    workers = {role: sum(slot.role == role for slot in slots) for role in ("actor", "rollout", "env")}
    workers = {role: count for role, count in workers.items() if count}
    interface = next((slot.interface for slot in slots), _interfaces(config).get(node.name))
    folders = _folders(config, node)
    packages = needed_packages(config, workers, _interpreters(plan, node.name))
    worlds = (_simulator(config, slots), _ports(config, slots), packages)
    jobs = (workers, interface, folders, tuple(_inputs(config, workers)), is_thorough, writes_markers, *worlds)
    return NodeRequest(node.name, node.address, *jobs)


def _interpreters(plan: Plan | None, node: str) -> dict[str, str]:
    """Map the interpreters of a node's simulators to the configuration keys that name them."""
    if plan is None:
        return {}
    groups = {planned.node.name: planned.group for planned in plan.nodes}
    slots = [slot for slot in plan.slots if slot.node == node]
    return {slot.interpreter: f"placement.nodes.{groups[node]}.python" for slot in slots if slot.interpreter}


def _simulator(config: RunConfig, slots: list[Slot]) -> SimulatorRequest | None:
    slot = next((slot for slot in slots if slot.role == "env"), None)
    spec = simulator_spec(config.env)
    inspection = spec.resources.node_checks
    if slot is None or inspection is None:
        return None
    environment = {setting.name: setting.value for setting in slot.environment}
    is_needed = SIMULATORS.part(spec, "resources.node_checks").is_measured_at_start(config)
    return SimulatorRequest(inspection, slot.interpreter or sys.executable, environment, config.env, is_needed)


def _ports(config: RunConfig, slots: list[Slot]) -> tuple[FixedPort, ...]:
    """Return the fixed ports of actor rank 0.

    A single rank needs no store, and only the collective transport needs the second port.
    """
    port = config.cluster.store_port
    if port is None or "actor/0" not in [slot.name for slot in slots]:
        return ()
    store = [FixedPort("cluster.store_port", port)] if config.actor.num_workers > 1 else []
    is_collective = config.weight_sync.transport is WeightTransport.collective
    return (*store, *([FixedPort("cluster.store_port + 1", port + 1)] if is_collective else []))


def _interfaces(config: RunConfig) -> dict[str, str]:
    """Map node names to the interfaces that node groups give them; used without a plan."""
    groups = [group for group in config.placement.nodes.values() if isinstance(group, Mapping)]
    return {
        name: group["interface"]
        for group in groups
        if group.get("interface")
        for name in ([group["names"]] if isinstance(group.get("names"), str) else group.get("names") or ())
    }


def _folders(config: RunConfig, node: NodeInfo) -> tuple[Folder, ...]:
    """Return the folders that every node writes to; the run folder is one, since all workers log there."""
    folders = [Folder("cache", str(Path(config.cache_dir).absolute()))]
    if config.cluster.kind is ClusterKind.ray:
        temp = node.temp_dir or folder_for_ray(config.cluster.temp_dir).path
        shared_memory = Folder("shared memory", SHARED_MEMORY)
        folders += [Folder("temp", temp), Folder("spill", node.spill_dir or temp), shared_memory]
    if config.output_dir is not None:
        folders.append(Folder("run", str(Path(config.output_dir).absolute())))
    return tuple(folders)


def _inputs(config: RunConfig, workers: Mapping[str, int]) -> list[Input]:
    wanted = []
    evaluated = config.evaluation.checkpoint
    if evaluated is not None and "rollout" in workers:
        wanted.append(Input("evaluation.checkpoint", str(Path(evaluated).absolute())))
    elif config.policy.path is not None and ({"actor", "rollout"} & set(workers)):
        wanted.append(Input("policy.path", str(Path(config.policy.path).absolute())))
    if "actor" in workers:
        if config.demos.path is not None and config.policy.path is None:
            wanted.append(Input("demos.path", str(Path(config.demos.path).absolute())))
        if config.checkpoint.resume not in (None, "auto"):
            wanted.append(Input("checkpoint.resume", str(Path(str(config.checkpoint.resume)).absolute())))
    return wanted
