"""What machines there are: nodes, their cores, memory and accelerators; from a file or from this machine.

An inventory file::

    nodes:
      - {name: train-0, address: 10.77.0.1, cpus: 96, memory_gb: 1000,
         accelerators: {model: A100, count: 8, memory_gb: 80}}
      - {name: sim, count: 4, cpus: 64, memory_gb: 256, accelerators: {model: RTX 4090, count: 8, memory_gb: 24}}

`count` on a node repeats it as sim-0, sim-1, …
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlrun.config.errors import RunError
from rlrun.config.exit_status import ExitStatus
from rlrun.config.schema import RunConfig

GIGABYTE = 10**9
# Data-centre models that compute but cannot trace rays; whatever else is NVIDIA's since Turing has RT cores.
WITHOUT_RT_CORES = re.compile(
    r"\b(A100|A800|A30X?|H100|H800|H20|H200|GH200|B100|B200|GB200|B300|GB300|V100|P100|P40|K80)\b"
)
_NODE_KEYS = {"name", "address", "count", "cpus", "memory_gb", "accelerators"}
_ACCELERATOR_KEYS = {"model", "count", "memory_gb", "rt_cores"}
_QUERY_S = 10


@dataclass(frozen=True)
class Accelerator:
    """One GPU. Example: Accelerator("NVIDIA A100-SXM4-80GB", 80_000_000_000, has_rt_cores=False)."""

    model: str
    memory_bytes: int
    has_rt_cores: bool


@dataclass(frozen=True)
class NodeInfo:
    """One machine. Example: NodeInfo("sim-0", "10.77.0.2", 64, 256_000_000_000, (rtx_4090,) * 8)."""

    name: str
    address: str  # "" where not known: an inventory file for planning
    num_cpus: int
    memory_bytes: int
    accelerators: tuple[Accelerator, ...]

    def __str__(self) -> str:
        return f"{self.name} ({describe(self.accelerators)}, {self.num_cpus} cores)"


@dataclass(frozen=True)
class Inventory:
    """All machines, in the order in which accelerators are counted."""

    nodes: tuple[NodeInfo, ...]

    @cached_property
    def num_accelerators(self) -> int:
        return sum(len(node.accelerators) for node in self.nodes)

    def __str__(self) -> str:
        return "; ".join(str(node) for node in self.nodes[:8]) + ("; …" if len(self.nodes) > 8 else "")


def describe(accelerators: tuple[Accelerator, ...]) -> str:
    """Example: "8 x RTX 4090"; "no accelerator"."""
    models = dict.fromkeys(accelerator.model for accelerator in accelerators)
    counts = {model: sum(a.model == model for a in accelerators) for model in models}
    return ", ".join(f"{count} x {model}" for model, count in counts.items()) or "no accelerator"


def load_inventory(path: Path | str) -> Inventory:
    """Read an inventory file. Raises RunError naming the node and the key."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise _fault(path, f"It cannot be read: {error}") from error
    if not isinstance(content, dict) or set(content) != {"nodes"} or not isinstance(content["nodes"], list):
        raise _fault(path, "It must hold one key, 'nodes', with a list.")
    nodes = tuple(node for entry in content["nodes"] for node in _nodes(path, entry))
    names = [node.name for node in nodes]
    repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if repeated or not nodes:
        raise _fault(path, f"Node names come twice: {', '.join(repeated)}." if repeated else "It lists no node.")
    return Inventory(nodes)


def _nodes(path: Path | str, entry: Any) -> Iterator[NodeInfo]:
    name = entry.get("name", "?") if isinstance(entry, dict) else str(entry)
    _known_keys(path, f"node {name}", entry, _NODE_KEYS, {"name", "cpus", "memory_gb"})
    accelerators = _accelerators(path, f"node {name}, accelerators", entry.get("accelerators"))
    count = entry.get("count")
    for i in range(1 if count is None else _number(path, f"node {name}", "count", count)):
        cpus = _number(path, f"node {name}", "cpus", entry["cpus"])
        memory = _number(path, f"node {name}", "memory_gb", entry["memory_gb"]) * GIGABYTE
        full_name = name if count is None else f"{name}-{i}"
        yield NodeInfo(full_name, str(entry.get("address", "")), cpus, memory, accelerators)


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
        raise _fault(path, f"{where}: {entry!r} is no mapping.")
    unknown, missing = sorted(set(entry) - known), sorted(needed - set(entry))
    if unknown or missing:
        told = f"unknown {', '.join(unknown)}" if unknown else f"lacks {', '.join(missing)}"
        raise _fault(path, f"{where} {told}; its keys are {', '.join(sorted(known))}.")


def _number(path: Path | str, where: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < (key != "count"):
        raise _fault(path, f"{where}: {key} is {value!r}, a positive number is needed.")
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


def known_inventory(config: RunConfig) -> Inventory:
    """The machines of `placement.inventory`; without one, this machine."""
    path = config.placement.inventory
    return load_inventory(path) if path is not None else Inventory((this_node(),))


def this_node() -> NodeInfo:
    """The machine this runs on; accelerators as nvidia-smi lists them, none where there is no nvidia-smi."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return NodeInfo(socket.gethostname(), "127.0.0.1", len(os.sched_getaffinity(0)), memory, _query_nvidia())


def _query_nvidia() -> tuple[Accelerator, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_S, check=False)
    if answer.returncode:
        return ()  # a driver without a device; nvidia-smi says so with a status
    return tuple(parse_nvidia_line(line) for line in answer.stdout.splitlines() if line.strip())


def parse_nvidia_line(line: str) -> Accelerator:
    """Example: "NVIDIA A100-SXM4-80GB, 81920" (MiB)."""
    model, mebibytes = (part.strip() for part in line.rsplit(",", 1))
    return Accelerator(model, int(mebibytes) * 2**20, not WITHOUT_RT_CORES.search(model))
