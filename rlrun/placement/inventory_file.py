"""Inventory files describe machines, for planning without access to them.

An inventory file::

    nodes:
      - {name: train-0, address: 10.77.0.1, cpus: 96, memory_gb: 1000, object_store_gb: 200, spill_gb: 2000,
         accelerators: {model: A100, count: 8, memory_gb: 80}}
      - {name: sim, count: 4, cpus: 64, memory_gb: 256, accelerators: {model: RTX 4090, count: 8, memory_gb: 24}}

`count` on a node repeats it as sim-0, sim-1, …; `spill_gb` is the free space of its spill directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.placement.inventory import GIGABYTE, WITHOUT_RT_CORES, Accelerator, Inventory, NodeInfo
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import read_yaml
from rlrun.system.network import require_ipv4

_LARGEST = 1_000_000
_NODE_KEYS = {"name", "address", "count", "cpus", "memory_gb", "accelerators", "object_store_gb", "spill_gb"}
_ACCELERATOR_KEYS = {"model", "count", "memory_gb", "rt_cores"}


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
    unknown, missing = sorted(set(entry) - known), sorted(needed - set(entry))
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
