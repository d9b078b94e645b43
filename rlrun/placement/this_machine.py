"""Measures this machine as a node of an inventory."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace
from pathlib import Path

import psutil

from rlrun.config.schema import RunConfig
from rlrun.placement.accelerators import find_accelerators
from rlrun.placement.inventory import THIS_MACHINE, Interface, Inventory, NodeInfo
from rlrun.placement.inventory_file import load_inventory
from rlrun.system.local_files import folder_for_ray
from rlrun.system.machine_load import host_memory, num_cores

RAY_DISK_SHARE = 0.95


def known_inventory(config: RunConfig) -> Inventory:
    """Return the machines of `placement.inventory`, else this machine with the Ray that rlrun would start on it."""
    path = config.placement.inventory
    if path is not None:
        return load_inventory(path)
    folder = folder_for_ray(config.cluster.temp_dir).path
    node = replace(
        this_node(),
        temp_dir=folder,
        object_store_bytes=config.cluster.object_store_bytes,
        spill_dir=folder,
        spill_free_bytes=spill_space(folder) if Path(folder).is_dir() else None,
    )
    return Inventory((node,), THIS_MACHINE)


def spill_space(folder: str) -> int:
    """Return the bytes that Ray may still write to the disk of `folder`; it stops when the disk is 95 % full."""
    disk = shutil.disk_usage(folder)
    return max(0, disk.free - round((1 - RAY_DISK_SHARE) * disk.total))


def this_node() -> NodeInfo:
    """Return this machine, with the cores and memory that its control groups leave to this process, and accelerators.

    Raises RunError if the accelerators cannot be listed.
    """
    found = find_accelerators()
    return NodeInfo(
        socket.gethostname(),
        "127.0.0.1",
        num_cores(),
        host_memory().total_bytes,
        found.devices,
        interfaces(),
        doubts=found.doubts,
    )


def interfaces() -> tuple[Interface, ...]:
    """Return the interfaces that are up and have an IPv4 address, including loopback."""
    states = psutil.net_if_stats()
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        own = tuple(a.address for a in addresses if a.family == socket.AF_INET)
        if own and states[name].isup:
            found.append(Interface(name, own))
    return tuple(sorted(found, key=lambda interface: interface.name))
