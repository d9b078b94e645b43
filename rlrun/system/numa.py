"""NUMA nodes: a process whose accelerator is at one of them computes and keeps its host memory there.

Copies to and from an accelerator otherwise cross the link between sockets.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from rlrun.system import nvidia_smi

logger = logging.getLogger(__name__)
_DEVICES = "sys/bus/pci/devices"
_THREADS = "proc/self/task"


def bind_near(accelerator: int, num_threads: int, root: Path = Path("/")) -> None:
    """Bind all threads of this process to the cores beside an accelerator, as nvidia-smi counts them.

    Does nothing where these are not known, or are all cores that the process may use, or are fewer than the threads
    that it computes with, and on systems that bind no processes. root: the folder of proc and sys.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    near = cores_near(accelerator, root) & allowed
    if near == allowed or len(near) < max(1, num_threads):
        return
    for thread in (root / _THREADS).iterdir():  # later threads take it from the one that starts them
        with suppress(OSError):  # it may have ended
            os.sched_setaffinity(int(thread.name), near)
    logger.info("bound to the %d of %d cores beside accelerator %d", len(near), len(allowed), accelerator)


def cores_near(accelerator: int, root: Path = Path("/")) -> set[int]:
    """Return the cores of an accelerator's NUMA node; none if they are not known."""
    try:
        addresses = dict(nvidia_smi.query(("index", "pci.bus_id")))
        domain, _, place = addresses[str(accelerator)].lower().partition(":")
        folder = root / _DEVICES / f"{int(domain, 16):04x}:{place}"
        return parse_cores((folder / "local_cpulist").read_text())
    except (OSError, ValueError, KeyError):
        return set()


def parse_cores(listed: str) -> set[int]:
    """Return the cores of a list as Linux writes it. Raises ValueError. Example: {0, 1, 2, 8} of "0-2,8"."""
    cores: set[int] = set()
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores
