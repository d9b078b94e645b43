"""The machines: nodes with their cores, memory, accelerators, network interfaces and disks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_yaml
from rlrun.system.network import require_ipv4

GIGABYTE = 10**9
# Data-centre models without RT cores; all other NVIDIA models since Turing have them.
WITHOUT_RT_CORES = re.compile(
    r"\b(A100|A800|A30X?|H100|H800|H20|H200|GH200|B100|B200|GB200|B300|GB300|V100|P100|P40|K80)\b"
)
THIS_MACHINE = "this machine"
_LARGEST = 1_000_000
_NODE_KEYS = {"name", "address", "count", "cpus", "memory_gb", "accelerators", "object_store_gb", "spill_gb"}
_ACCELERATOR_KEYS = {"model", "count", "memory_gb", "rt_cores"}


@dataclass(frozen=True)
class Accelerator:
    """One GPU. Example: Accelerator("NVIDIA A100-SXM4-80GB", 80_000_000_000, has_rt_cores=False)."""

    model: str
    memory_bytes: int | None  # None: unknown
    has_rt_cores: bool
    is_fake: bool = False  # declared for a test: planned and reserved, but no worker can compute on it
    is_hidden: bool = False  # CUDA_VISIBLE_DEVICES of the user excludes it: it keeps its index, and gets no worker
    max_processes: int | None = None  # that may compute on it at once, by its compute mode; None: any number


@dataclass(frozen=True)
class Interface:
    """A network interface that is up. Example: Interface("enp3s0", ("10.77.0.1",))."""

    name: str
    addresses: tuple[str, ...]  # IPv4


@dataclass(frozen=True)
class NodeInfo:
    """One machine. Fields that the inventory does not give are None or ().

    Example: NodeInfo("sim-0", "10.77.0.2", 64, 256_000_000_000, (rtx_4090,) * 8)
    """

    name: str
    address: str  # "" if unknown, as in an inventory file for planning
    num_cpus: int
    memory_bytes: int
    accelerators: tuple[Accelerator, ...]
    interfaces: tuple[Interface, ...] = ()
    temp_dir: str | None = None  # of its Ray
    object_store_bytes: int | None = None  # of its Ray
    spill_dir: str | None = None  # folder for objects that do not fit into the object store of its Ray
    spill_free_bytes: int | None = None  # bytes that Ray may still write there; it stops at 95 % of a disk
    doubts: tuple[str, ...] = ()  # sentences on what could not be measured

    @property
    def usable(self) -> tuple[int, ...]:
        """Indices of the accelerators that are not hidden. Indices are those of nvidia-smi."""
        return tuple(index for index, accelerator in enumerate(self.accelerators) if not accelerator.is_hidden)

    def __str__(self) -> str:
        return f"{self.name} ({describe(self.accelerators)}, {self.num_cpus} cores)"


@dataclass(frozen=True)
class Inventory:
    """All machines, in the order that numbers the accelerators."""

    nodes: tuple[NodeInfo, ...]
    source: str = "a list"  # origin, for messages

    @cached_property
    def num_accelerators(self) -> int:
        return sum(len(node.usable) for node in self.nodes)

    def node(self, name: str) -> NodeInfo:
        """Return the node of a name. Raises KeyError."""
        return self._by_name[name]

    @property
    def doubts(self) -> tuple[str, ...]:
        """Measurements that failed, with the node if there are several."""
        where = len(self.nodes) > 1
        return tuple(f"{node.name}: {doubt}" if where else doubt for node in self.nodes for doubt in node.doubts)

    @cached_property
    def _by_name(self) -> dict[str, NodeInfo]:
        return {node.name: node for node in self.nodes}

    def __str__(self) -> str:
        return "; ".join(str(node) for node in self.nodes[:8]) + ("; …" if len(self.nodes) > 8 else "")


def describe(accelerators: tuple[Accelerator, ...]) -> str:
    """Example: "8 x RTX 4090"; "no accelerator". Hidden ones do not count."""
    accelerators = tuple(accelerator for accelerator in accelerators if not accelerator.is_hidden)
    models = dict.fromkeys(accelerator.model for accelerator in accelerators)
    counts = {model: sum(a.model == model for a in accelerators) for model in models}
    return ", ".join(f"{count} x {model}" for model, count in counts.items()) or "no accelerator"


def load_inventory(path: Path | str) -> Inventory:
    """Read an inventory file. Raises RunError naming the node and the key."""
    try:
        content = read_yaml(Path(path))
    except (OSError, ValueError) as error:
        raise _fault(path, f"It cannot be read: {error}") from error
    if not isinstance(content, dict) or set(content) != {"nodes"} or not isinstance(content["nodes"], list):
        raise _fault(path, "It must hold one key, 'nodes', with a list.")
    nodes = tuple(node for entry in content["nodes"] for node in _nodes(path, entry))
    names = [node.name for node in nodes]
    repeated = sorted(name for name, number in Counter(names).items() if number > 1)
    if repeated or not nodes:
        raise _fault(path, f"Repeated node names: {', '.join(repeated)}." if repeated else "It lists no node.")
    return Inventory(nodes, f"file {path}")


def _nodes(path: Path | str, entry: Any) -> Iterator[NodeInfo]:
    name = entry.get("name", "?") if isinstance(entry, dict) else str(entry)
    _known_keys(path, f"node {name}", entry, _NODE_KEYS, {"name", "cpus", "memory_gb"})
    accelerators = _accelerators(path, f"node {name}, accelerators", entry.get("accelerators"))
    count = entry.get("count")
    for i in range(1 if count is None else _number(path, f"node {name}", "count", count)):
        cpus = _number(path, f"node {name}", "cpus", entry["cpus"])
        memory = _number(path, f"node {name}", "memory_gb", entry["memory_gb"]) * GIGABYTE
        full_name = name if count is None else f"{name}-{i}"
        store, spill = (_gigabytes(path, f"node {name}", entry, key) for key in ("object_store_gb", "spill_gb"))
        address = str(entry.get("address", ""))
        require_ipv4(address, "placement.inventory")
        yield NodeInfo(full_name, address, cpus, memory, accelerators, object_store_bytes=store, spill_free_bytes=spill)


def _accelerators(path: Path | str, where: str, entry: Any) -> tuple[Accelerator, ...]:
    if entry is None:
        return ()
    kinds = entry if isinstance(entry, list) else [entry]
    found: list[Accelerator] = []
    for kind in kinds:
        _known_keys(path, where, kind, _ACCELERATOR_KEYS, {"model", "count", "memory_gb"})
        memory = _number(path, where, "memory_gb", kind["memory_gb"]) * GIGABYTE
        has_rt_cores = kind.get("rt_cores", not WITHOUT_RT_CORES.search(str(kind["model"])))
        count = _number(path, where, "count", kind["count"])
        found += [Accelerator(str(kind["model"]), memory, bool(has_rt_cores))] * count
    return tuple(found)


def _known_keys(path: Path | str, where: str, entry: Any, known: set[str], needed: set[str]) -> None:
    if not isinstance(entry, dict):
        raise _fault(path, f"{where}: {entry!r} is not a mapping.")
    unknown = sorted(set(entry) - known)
    missing = sorted(needed - set(entry))
    if unknown or missing:
        fault = f"has the unknown keys {', '.join(unknown)}" if unknown else f"lacks {', '.join(missing)}"
        raise _fault(path, f"{where} {fault}; its keys are {', '.join(sorted(known))}.")


def _gigabytes(path: Path | str, where: str, entry: dict[str, Any], key: str) -> int | None:
    return None if entry.get(key) is None else _number(path, where, key, entry[key]) * GIGABYTE


def _number(path: Path | str, where: str, key: str, value: Any) -> int:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (key != "count") <= value <= _LARGEST:
        raise _fault(path, f"{where}: {key} is {value!r}, a positive number up to {_LARGEST} is needed.")
    return int(value)


def _fault(path: Path | str, cause: str) -> RunError:
    return RunError(
        "The inventory cannot be used.",
        key="placement.inventory",
        value=str(path),
        cause=cause,
        remedy="See configs/inventory_example.yaml.",
        exit_status=ExitStatus.placement,
    )
