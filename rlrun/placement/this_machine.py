"""Measures this machine as a node of an inventory."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import psutil

from rlrun.config.schema import RunConfig
from rlrun.placement.inventory import (
    GIGABYTE,
    THIS_MACHINE,
    WITHOUT_RT_CORES,
    Accelerator,
    Interface,
    Inventory,
    NodeInfo,
)
from rlrun.placement.inventory_file import load_inventory
from rlrun.system import nvidia_smi
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

# For tests: "A100:8:80" declares 8 accelerators of 80 GB, "RTX 4090:4:24:rt" accelerators with RT cores.
# Nodes of a test cluster plan and reserve them; no worker can compute on them.
FAKE_ACCELERATORS = "RLRUN_FAKE_ACCELERATORS"
RAY_DISK_SHARE = 0.95
_QUERY_S = 10


def known_inventory(config: RunConfig) -> Inventory:
    """Return the machines of `placement.inventory`, else this machine with the Ray that rlrun would start on it."""
    path = config.placement.inventory
    if path is not None:
        return load_inventory(path)
    folder = config.cluster.temp_dir or tempfile.gettempdir()
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
    """Return this machine, with the accelerators that nvidia-smi lists; none without nvidia-smi.

    Those that CUDA_VISIBLE_DEVICES excludes are hidden.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return NodeInfo(socket.gethostname(), "127.0.0.1", cores, memory, accelerators(), interfaces())


def accelerators() -> tuple[Accelerator, ...]:
    """Return the accelerators of this machine, or the fake ones that its environment declares."""
    declared = os.environ.get(FAKE_ACCELERATORS)
    return parse_fake_accelerators(declared) if declared else _query_nvidia()


def interfaces() -> tuple[Interface, ...]:
    """Return the interfaces that are up and have an IPv4 address, including loopback."""
    states = psutil.net_if_stats()
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        own = tuple(a.address for a in addresses if a.family == socket.AF_INET)
        if own and states[name].isup:
            found.append(Interface(name, own))
    return tuple(sorted(found, key=lambda interface: interface.name))


def parse_fake_accelerators(declared: str) -> tuple[Accelerator, ...]:
    """Parse "model:count:memory_gb", with ":rt" for RT cores. Raises RunError.

    Example: "A100:8:80" -> (Accelerator("A100", 80_000_000_000, False, is_fake=True),) * 8
    """
    model, *fields = declared.split(":")
    if (
        not model
        or len(fields) not in (2, 3)
        or not all(f.isdigit() for f in fields[:2])
        or fields[2:] not in ([], ["rt"])
    ):
        raise RunError(
            f"{FAKE_ACCELERATORS} cannot be parsed.",
            FAKE_ACCELERATORS,
            declared,
            remedy="Write model:count:memory_gb, such as A100:8:80, with :rt appended for RT cores. Unset it outside "
            "tests.",
            exit_status=ExitStatus.placement,
            row="pretended-accelerators",
        )
    count, memory_gb = int(fields[0]), int(fields[1])
    return (Accelerator(model, memory_gb * GIGABYTE, has_rt_cores=fields[2:] == ["rt"], is_fake=True),) * count


def _query_nvidia() -> tuple[Accelerator, ...]:
    try:
        lines = nvidia_smi.require_answer(("name", "memory.total", "uuid"), timeout_s=_QUERY_S)
    except TimeoutError as error:
        raise RunError(
            "The accelerators of this machine cannot be listed.",
            cause=str(error),
            remedy="The driver hangs: look at `dmesg`, and restart the machine or take it out of the plan.",
            exit_status=ExitStatus.placement,
            row="nvidia-smi",
        ) from error
    visible = _visible_devices([uuid for _, _, uuid in lines])
    return tuple(_accelerator(model, memory, index in visible) for index, (model, memory, _) in enumerate(lines))


def _accelerator(model: str, mebibytes: str, is_visible: bool) -> Accelerator:
    """Example: "NVIDIA A100-SXM4-80GB", "81920"."""
    has_rt_cores = not WITHOUT_RT_CORES.search(model)
    return Accelerator(model, nvidia_smi.num_bytes(mebibytes), has_rt_cores, is_hidden=not is_visible)


def _visible_devices(uuids: list[str]) -> set[int]:
    """Return the indices that CUDA_VISIBLE_DEVICES names, by number or by a beginning of the UUID; all if it is unset.

    CUDA ignores all entries after the first that names no device; so does this. Example: "2,3" -> {2, 3}
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return set(range(len(uuids)))
    found: set[int] = set()
    for entry in map(str.strip, named.split(",")):
        is_uuid = entry.startswith("GPU-")
        matches = [i for i, uuid in enumerate(uuids) if entry == str(i) or (is_uuid and uuid.startswith(entry))]
        if len(matches) != 1:
            break
        found.add(matches[0])
    return found
