"""Measures this machine as a node of an inventory."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
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
    load_inventory,
)
from rlrun.system import nvidia_smi
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.import_path import question
from rlrun.system.local_files import folder_for_ray
from rlrun.system.machine_load import host_memory, num_cores
from rlrun.system.nvidia_smi import UnansweredError

# For tests: "A100:8:80" declares 8 accelerators of 80 GB, "RTX 4090:4:24:rt" accelerators with RT cores.
# Nodes of a test cluster plan and reserve them; no worker can compute on them.
FAKE_ACCELERATORS = "RLRUN_FAKE_ACCELERATORS"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_QUERY_S = 10
_LIMITS = {"Exclusive_Process": 1, "Exclusive_Thread": 1, "Prohibited": 0}  # of nvidia-smi's compute modes
_MPS = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_FOLDER = "/tmp/nvidia-mps"
_CUDA_S = 120  # importing torch on a busy machine
_ASK_CUDA = """
import json, torch
count = torch.cuda.device_count()
found = [torch.cuda.get_device_properties(i) for i in range(count)]
print(json.dumps([[one.name, one.total_memory] for one in found]))
"""
# Signs of a device or driver: Linux, WSL 2, Jetson.
_SIGNS = ("dev/nvidia[0-9]*", "dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg", "dev/nvgpu", "dev/nvhost-gpu")
_PCI_VENDOR = "0x10de"
_PCI_DISPLAY = "0x03"
RAY_DISK_SHARE = 0.95


@dataclass(frozen=True)
class FoundAccelerators:
    """The accelerators of a machine, and a sentence on each thing that could not be found out about them."""

    devices: tuple[Accelerator, ...]
    doubts: tuple[str, ...] = ()

    @property
    def num_visible(self) -> int:
        """How many of them get workers: a job with one card of a shared node sees the others as well."""
        return sum(not device.is_hidden for device in self.devices)


def find_accelerators(root: Path = Path("/")) -> FoundAccelerators:
    """Return the accelerators of this machine, or the fake ones that its environment declares.

    Those that CUDA_VISIBLE_DEVICES excludes are hidden. root: the folder of dev, proc and sys. Raises RunError if
    nvidia-smi cannot list them, CUDA cannot either, and the machine has some.
    """
    declared = os.environ.get(FAKE_ACCELERATORS)
    if declared:
        fakes = parse_fake_accelerators(declared)
        visible = _visible_devices([""] * len(fakes))
        return FoundAccelerators(tuple(replace(fake, is_hidden=i not in visible) for i, fake in enumerate(fakes)))
    try:
        lines = nvidia_smi.query(("name", "memory.total", "uuid"), timeout_s=_QUERY_S)
    except UnansweredError as error:
        return _without_nvidia_smi(error, root)
    visible = _visible_devices([uuid for _, _, uuid in lines])
    devices = [
        _accelerator(name, nvidia_smi.parse_mebibytes(memory), i in visible)
        for i, (name, memory, _) in enumerate(lines)
    ]
    found = _with_memory(devices, [memory for _, memory, _ in lines])
    limits = _process_limits(len(devices))
    limited = [replace(one, max_processes=limit) for one, limit in zip(found.devices, limits, strict=True)]
    return FoundAccelerators(tuple(limited), found.doubts)


def _process_limits(num_devices: int) -> list[int | None]:
    """Return how many processes each device lets compute at once; None: any number, or nvidia-smi does not say.

    Behind the server of CUDA's MPS, which then is the only one, several processes compute.
    """
    unknown: list[int | None] = [None] * num_devices
    if Path(os.environ.get(_MPS, _MPS_FOLDER), "control").exists():
        return unknown
    try:
        lines = nvidia_smi.query(("compute_mode",), timeout_s=_QUERY_S)
    except UnansweredError:
        return unknown
    return [_LIMITS.get(mode) for (mode,) in lines] if len(lines) == num_devices else unknown


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
        )
    count = int(fields[0])
    memory_gb = int(fields[1])
    return (Accelerator(model, memory_gb * GIGABYTE, has_rt_cores=fields[2:] == ["rt"], is_fake=True),) * count


def _accelerator(model: str, memory_bytes: int | None, is_visible: bool) -> Accelerator:
    """Example: "NVIDIA A100-SXM4-80GB", 85_899_345_920."""
    has_rt_cores = not WITHOUT_RT_CORES.search(model)
    return Accelerator(model, memory_bytes or None, has_rt_cores, is_hidden=not is_visible)


def _with_memory(devices: list[Accelerator], said: list[str]) -> FoundAccelerators:
    """Ask CUDA for memory that nvidia-smi does not know. said: its words for the memory of each."""
    unknown = [i for i, device in enumerate(devices) if device.memory_bytes is None and not device.is_hidden]
    if not unknown:
        return FoundAccelerators(tuple(devices))
    by_cuda = _ask_cuda()
    if len(by_cuda) == len(devices):
        devices = [
            _accelerator(device.model, device.memory_bytes or memory, not device.is_hidden)
            for device, (_, memory) in zip(devices, by_cuda, strict=True)
        ]
    doubts = [
        f"the memory of accelerator {i} ({devices[i].model}) is not known: nvidia-smi says '{said[i]}', and CUDA does "
        "not answer; the plan does not judge whether its workers fit (placement.inventory can state its memory)"
        for i in unknown
        if devices[i].memory_bytes is None
    ]
    return FoundAccelerators(tuple(devices), tuple(doubts))


def _without_nvidia_smi(error: UnansweredError, root: Path) -> FoundAccelerators:
    """Return what CUDA lists; none if there is no sign of a device. Raises RunError if there is one, or may be."""
    if _hides_all():
        return FoundAccelerators(())
    by_cuda = [] if error.is_late else _ask_cuda()
    if by_cuda:
        visible = _visible_devices([""] * len(by_cuda))
        devices = tuple(_accelerator(name, memory, i in visible) for i, (name, memory) in enumerate(by_cuda))
        return FoundAccelerators(devices, (f"{error}; the accelerators of this machine are those that CUDA lists",))
    sign = _sign_of_device(root)
    if sign is None and not error.is_late:
        told = f"{error}; CUDA lists no accelerator, and neither /dev, /proc nor the PCI bus shows one: none is used"
        return FoundAccelerators((), (told,))
    raise RunError(
        "The accelerators of this machine cannot be listed.",
        cause=str(error) if sign is None else f"{error}\nCUDA lists none either, and {sign} shows that there is one.",
        remedy="The driver hangs: look at `dmesg`, and restart the machine or take it out of the plan."
        if error.is_late
        else "Repair the driver: after its update, restart the machine; start containers with the GPUs. To compute "
        f"without accelerators: export {VISIBLE}= (empty).",
        exit_status=ExitStatus.placement,
    ) from error


def _ask_cuda() -> list[tuple[str, int]]:
    """Return name and bytes of every device that CUDA lists, in nvidia-smi's order; [] if it lists none or fails.

    It is asked in a process of its own, since a context takes memory of the device.
    """
    environment = {name: value for name, value in os.environ.items() if name != VISIBLE}
    try:
        done = subprocess.run(
            question(sys.executable, _ASK_CUDA),
            env=environment | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CUDA_S,
            check=False,
        )
        return [(str(name), int(memory)) for name, memory in json.loads(done.stdout.splitlines()[-1])]
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError, TypeError):
        return []


def _sign_of_device(root: Path) -> str | None:
    """Return a path that shows an NVIDIA device or its driver; None if nothing does."""
    for pattern in _SIGNS:
        for path in root.glob(pattern):
            return str(path)
    for vendor in root.glob("sys/bus/pci/devices/*/vendor"):
        try:
            is_display = (vendor.parent / "class").read_text().startswith(_PCI_DISPLAY)
            if is_display and vendor.read_text().strip() == _PCI_VENDOR:
                return str(vendor.parent)
        except OSError:
            continue
    return None


def _hides_all() -> bool:
    """Return whether CUDA_VISIBLE_DEVICES names no device at all, as "" and "-1" do."""
    named = os.environ.get(VISIBLE)
    return named is not None and named.strip() in ("", "-1", "NoDevFiles")


def _visible_devices(uuids: list[str]) -> set[int]:
    """Return the indices that CUDA_VISIBLE_DEVICES names, by number or by a beginning of the UUID; all if it is unset.

    CUDA ignores all entries after the first that names no device; so does this. Example: "2,3" -> {2, 3}
    """
    named = os.environ.get(VISIBLE)
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
