"""CPUs and memory that this process may use, the load of the machine, and a steady clock.

A container, SLURM or systemd limits a process by control groups, of which both versions are read. The kernel lists the
groups of a process in /proc/self/cgroup, and their mount points in /proc/self/mountinfo. A limit of a parent holds for
all groups below it, so the least one counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_BYTES = 2**60  # bytes; version 1 writes a number near 2**63 where there is none
_V2 = "cgroup2"
# Above memory.high the kernel throttles the group, above memory.max it kills a process; the plan stays below both.
_MEMORY_FILES = (
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
BUSY_LOAD = 2.0  # runnable processes per core, from which on everything takes longer
_CLOCK = time.CLOCK_BOOTTIME  # it also runs while a machine sleeps, so that the clocks of hosts stay aligned
_OFFSET_S = time.time() - time.clock_gettime(_CLOCK)  # at the start of this process


@dataclass(frozen=True)
class HostMemory:
    """The memory that this process and its children may use, in bytes.

    limited_by: the file of the control group with the least limit; None: no group limits them.
    """

    total_bytes: int
    free_bytes: int
    limited_by: Path | None = None


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Return the machine's memory within the limits of this process's control groups.

    root: the folder that holds proc and the mount points. Reclaimable page cache of a group counts as free.
    """
    import psutil  # missing in interpreters of simulators, which call only `num_cores`

    machine = psutil.virtual_memory()
    memory = HostMemory(machine.total, machine.available)
    for folder in control_group_folders("memory", root):
        for limit_name, usage_name in _MEMORY_FILES:
            limit = _read_number(folder / limit_name)
            if limit is None or limit >= _UNLIMITED_BYTES:
                continue
            free = max(0, limit - max(0, (_read_number(folder / usage_name) or 0) - _reclaimable(folder)))
            is_least = limit < memory.total_bytes
            memory = HostMemory(
                min(limit, memory.total_bytes),
                min(free, memory.free_bytes),
                folder / limit_name if is_least else memory.limited_by,
            )
    return memory


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU quota of the control groups, in cores; None without a quota. Example: 1.5."""
    quotas = [quota for folder in control_group_folders("cpu", root) if (quota := _quota_of_group(folder)) is not None]
    return min(quotas, default=None)


def num_cores(root: Path = Path("/")) -> int:
    """Return the cores that this process may use: its affinity, limited by its quota rounded down.

    With more threads than the quota has cores, the kernel halts all of them once the quota is used up.
    """
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def is_throttled(root: Path = Path("/")) -> bool:
    """Return whether the CPU quota throttled this process's group in most of the periods in which it ran."""
    for folder in control_group_folders("cpu", root):
        counts = _read_counts(folder / "cpu.stat")
        if _quota_of_group(folder) is not None and counts.get("nr_throttled", 0) > counts.get("nr_periods", 0) / 2:
            return True
    return False


def num_oom_kills(root: Path = Path("/")) -> int:
    """Return the number of processes of this control group that the kernel killed for lack of memory; 0 if unknown."""
    for folder in control_group_folders("memory", root):
        for name in ("memory.events", "memory.oom_control"):
            counts = _read_counts(folder / name)
            if "oom_kill" in counts:
                return counts["oom_kill"]
    return 0


def control_group_folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders of this process's control group and of its parents, innermost first; [] if none is mounted.

    controller: "memory" or "cpu".
    """
    folders = []
    for mount_root, mount_point, kind, options in _mounts(root):
        if kind != _V2 and controller not in options:
            continue
        group = _group_path("" if kind == _V2 else controller, root)
        if group is None:
            continue
        top = root / mount_point.lstrip("/")
        inside = _path_below_mount(group, mount_root)
        group_folders = [top.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1)]
        folders += [folder for folder in group_folders if folder.is_dir() and folder not in folders]
    return folders


def _mounts(root: Path) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """Yield root within the file system, mount point, type and options of each mount of control groups."""
    for line in _read_lines(root / "proc/self/mountinfo"):
        before, separator, after = line.partition(" - ")
        fields = before.split()
        rest = after.split()
        if separator and len(fields) > 4 and rest and rest[0] in ("cgroup", _V2):
            yield fields[3], fields[4].replace("\\040", " "), rest[0], rest[-1].split(",")


def _group_path(controller: str, root: Path) -> str | None:
    """Return the path of this process's group. controller: of version 1; "" for version 2."""
    for line in _read_lines(root / "proc/self/cgroup"):
        fields = line.split(":", 2)
        if len(fields) == 3 and controller in fields[1].split(","):
            return fields[2]
    return None


def _path_below_mount(group: str, mount_root: str) -> tuple[str, ...]:
    """Return the parts of a group's path below the mount's root; () if the path lies outside, as in a container."""
    path = Path(group)
    top = Path(mount_root)
    if ".." in path.parts or not path.is_relative_to(top):
        return ()
    return path.relative_to(top).parts


def _quota_of_group(folder: Path) -> float | None:
    words = " ".join(_read_lines(folder / "cpu.max")).split()
    if not words:
        words = [*_read_lines(folder / "cpu.cfs_quota_us")[:1], *_read_lines(folder / "cpu.cfs_period_us")[:1]]
    with suppress(ValueError, IndexError, ZeroDivisionError):
        cores = int(words[0]) / int(words[1])
        return cores if cores > 0 else None  # version 1 writes -1 without a quota
    return None


def _reclaimable(folder: Path) -> int:
    """Return the bytes of inactive page cache of a group, which the kernel reclaims first."""
    counts = _read_counts(folder / "memory.stat")
    return counts.get("total_inactive_file", counts.get("inactive_file", 0))


def _read_number(file: Path) -> int | None:
    lines = _read_lines(file)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _read_counts(file: Path) -> dict[str, int]:
    words = [line.split() for line in _read_lines(file)]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def _read_lines(file: Path) -> list[str]:
    """Return the lines of a file; [] if it cannot be read, since a missing file means no limit."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def load_factor(load: float) -> float:
    """Return the factor by which time limits grow with `load` runnable processes per core. Example: 2.5 for 5.0."""
    return max(1.0, load / BUSY_LOAD)


def local_load() -> float:
    """Return the runnable processes per core of this host in the last minute; 0 if unknown.

    The kernel counts them for the entire host. If a quota throttles this process's group most of the time, the count
    is divided by the quota's cores.
    """
    try:
        running = os.getloadavg()[0]
    except OSError:
        return 0.0
    quota = cpu_quota()
    cores = os.cpu_count() or 1
    return running / (max(0.1, min(quota, cores)) if quota is not None and is_throttled() else cores)


def idle_core_seconds() -> float:
    """Return the seconds in which cores that this process may use had nothing to run, summed over these cores.

    A core whose processes wait for a disk counts as idle. Counted since the machine started.
    """
    import psutil

    allowed = os.sched_getaffinity(0)
    cores = psutil.cpu_times(percpu=True)
    return sum(core.idle + core.iowait for number, core in enumerate(cores) if number in allowed)


def local_load_factor() -> float:
    """Return the factor by which time limits grow on this host now."""
    return load_factor(local_load())


def steady_time() -> float:
    """Return the seconds since 1970 by a clock that is never set: the time of day at the start of this process, plus
    the time since then. Spans of several hosts can be compared although their clocks are set.
    """
    return time.clock_gettime(_CLOCK) + _OFFSET_S
