"""CPUs and memory that this process may use, how loaded the machine is, and a steady clock."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 2**60  # bytes; version 1 writes a number near 2**63 where there is none
_V2 = "cgroup2"


@dataclass(frozen=True)
class HostMemory:
    """The memory that this process and its children may use, in bytes.

    limited_by: the file of the control group with the least limit; None: the whole machine is theirs.
    """

    total_bytes: int
    free_bytes: int
    limited_by: Path | None = None


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Return the machine's memory, or what the limits of its control groups leave of it.

    root: the folder that holds proc and the mount points. The page cache that a group can give back counts as free.
    """
    import psutil  # simulators' interpreters, which read the cores here, may lack it

    machine = psutil.virtual_memory()
    found = HostMemory(machine.total, machine.available)
    for folder in folders("memory", root):
        for limit_name, usage_name in _MEMORY_FILES:
            limit = _number(folder / limit_name)
            if limit is None or limit >= _NO_LIMIT:
                continue
            free = max(0, limit - max(0, (_number(folder / usage_name) or 0) - _reclaimable(folder)))
            is_least = limit < found.total_bytes
            found = HostMemory(
                min(limit, found.total_bytes),
                min(free, found.free_bytes),
                folder / limit_name if is_least else found.limited_by,
            )
    return found


# Above memory.high, the kernel slows the group down instead of ending a process; neither is memory to plan with.
_MEMORY_FILES = (
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the cores' worth of CPU time that the control groups grant; None without a quota. Example: 1.5."""
    quotas = [quota for folder in folders("cpu", root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def num_cores(root: Path = Path("/")) -> int:
    """Return the cores that this process may use: by its affinity, and by its quota without a started core.

    More threads than the quota has cores are all halted once it is used up.
    """
    cores, quota = len(os.sched_getaffinity(0)), cpu_quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def is_throttled(root: Path = Path("/")) -> bool:
    """Return whether a quota halted this process's group in most of the periods in which it ran."""
    for folder in folders("cpu", root):
        counts = _counts(folder / "cpu.stat")
        if _quota(folder) is not None and counts.get("nr_throttled", 0) > counts.get("nr_periods", 0) / 2:
            return True
    return False


def num_oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes of this process's group the kernel has killed for memory; 0 if unknown."""
    for folder in folders("memory", root):
        for name in ("memory.events", "memory.oom_control"):
            counts = _counts(folder / name)
            if "oom_kill" in counts:
                return counts["oom_kill"]
    return 0


def folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders of this process's group and of its parents, the own one first; [] where none is mounted.

    controller: "memory" or "cpu".
    """
    found = []
    for mount_root, mount_point, kind, options in _mounts(root):
        if kind != _V2 and controller not in options:
            continue
        group = _group("" if kind == _V2 else controller, root)
        if group is None:
            continue
        top = root / mount_point.lstrip("/")
        inside = _relative(group, mount_root)
        own = [top.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1)]
        found += [folder for folder in own if folder.is_dir() and folder not in found]
    return found


def _mounts(root: Path) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """Yield root inside of the file system, mount point, kind, and options of each mount of control groups."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if separator and len(fields) > 4 and rest and rest[0] in ("cgroup", _V2):
            yield fields[3], fields[4].replace("\\040", " "), rest[0], rest[-1].split(",")


def _group(controller: str, root: Path) -> str | None:
    """Return the path of the group for a controller of version 1, or of version 2 ("")."""
    for line in _lines(root / "proc/self/cgroup"):
        fields = line.split(":", 2)
        if len(fields) == 3 and controller in fields[1].split(","):
            return fields[2]
    return None


def _relative(group: str, mount_root: str) -> tuple[str, ...]:
    """Return the parts of a group's path below what is mounted; () if it lies elsewhere, as seen from a container."""
    path, top = Path(group), Path(mount_root)
    if ".." in path.parts or not path.is_relative_to(top):
        return ()
    return path.relative_to(top).parts


def _quota(folder: Path) -> float | None:
    words = " ".join(_lines(folder / "cpu.max")).split()
    if not words:
        words = [*_lines(folder / "cpu.cfs_quota_us")[:1], *_lines(folder / "cpu.cfs_period_us")[:1]]
    with suppress(ValueError, IndexError, ZeroDivisionError):
        cores = int(words[0]) / int(words[1])
        return cores if cores > 0 else None  # version 1 writes -1 without a quota
    return None


def _reclaimable(folder: Path) -> int:
    """Return the bytes of cached files in a group that the kernel gives back first."""
    counts = _counts(folder / "memory.stat")
    return counts.get("total_inactive_file", counts.get("inactive_file", 0))


def _number(file: Path) -> int | None:
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _counts(file: Path) -> dict[str, int]:
    words = [line.split() for line in _lines(file)]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def _lines(file: Path) -> list[str]:
    """Return the lines of a file; [] if it cannot be read: a missing limit is no limit."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


_NORMAL_LOAD = 2.0  # runnable processes per core
_MAX_DRIVER_FACTOR = 2.0
_MAX_TRIAL_FACTOR = 10.0


def load_factor(load: float, most: float) -> float:
    """Return the factor for `load` runnable processes per core. Example: load_factor(5.0, most=3.0) == 2.5."""
    return min(most, max(1.0, load / _NORMAL_LOAD))


def local_load() -> float:
    """Return the runnable processes per core of this host, in the last minute; 0 where the kernel does not say.

    The kernel counts them for the whole host. Where a quota halts this process's group most of the time, they share
    the quota's cores.
    """
    try:
        running = os.getloadavg()[0]
    except OSError:
        return 0.0
    quota = cpu_quota()
    cores = os.cpu_count() or 1
    return running / (max(0.1, min(quota, cores)) if quota is not None and is_throttled() else cores)


def trial_factor(load: float) -> float:
    """Return the factor for the time limits of the doctor's trials, which start processes; 10 at most."""
    return load_factor(load, _MAX_TRIAL_FACTOR)


def local_load_factor() -> float:
    """Return the factor for the driver and the guard on this host, 2 at most."""
    return load_factor(local_load(), _MAX_DRIVER_FACTOR)


_CLOCK = time.CLOCK_BOOTTIME  # it counts the time in which a machine sleeps, so that hosts stay together
_OFFSET_S = time.time() - time.clock_gettime(_CLOCK)  # of this process, which keeps the time of day of its start


def seconds() -> float:
    """Return the seconds since 1970, as they would be had nobody set the clock since this process began."""
    return time.clock_gettime(_CLOCK) + _OFFSET_S
