"""What a private Ray consists of on this machine, its folder and its processes, and how it is ended.

Ray's own end is a wish: it sends SIGTERM, which these processes do not see, and its agents outlive a killed raylet by a
minute. The driver ends it so, and the guard of a driver that was killed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from rlrun.system.local_files import holder, stale_folders

PREFIX = "rlrun-ray-"
_END_S = 10.0
_POLL_S = 0.05
_WRITABLE = os.O_WRONLY | os.O_RDWR


def end_processes(folder: str) -> list[int]:
    """Kill this user's processes of the Ray in `folder`: services, agents and workers. Returns their ids.

    Others that name the folder or read in it, such as a person's `tail`, are left alone.
    """
    ended: set[int] = set()
    end = time.monotonic() + _END_S
    while (found := list(_processes(folder))) and time.monotonic() < end:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        ended |= {process.pid for process in found}
        time.sleep(_POLL_S)
    return sorted(ended)


def end_of(pid: int, parent: str) -> list[str]:
    """End what is left of the Rays that the dead process `pid` started in folders below `parent`.

    Returns a sentence on each, [] if there is none.
    """
    done = []
    for folder in stale_folders([parent], PREFIX):
        if holder(folder) == pid:
            ended = end_processes(str(folder))
            shutil.rmtree(folder, ignore_errors=True)
            done.append(f"ended {len(ended)} processes of its Ray, and removed {folder}")
    return done


def _processes(folder: str) -> Iterator[psutil.Process]:
    """Yield the processes that are of the Ray in `folder`: an option names it, or they write to a file in it.

    Only an option counts, "--option=<folder>/…", since a sentinel names the folder too. Ray's agents and workers
    replace their command lines, but write logs there.
    """
    for process in psutil.process_iter(["uids"]):
        if process.pid == os.getpid() or process.info["uids"] is None or process.info["uids"].effective != os.geteuid():
            continue
        with suppress(psutil.Error, OSError):  # it has ended meanwhile
            words = [word.partition("=")[2] for word in process.cmdline() if word.startswith("--")]
            if any(word.startswith(f"{folder}/") for word in words) or _writes_in(process.pid, folder):
                yield process


def _writes_in(pid: int, folder: str) -> bool:
    """Return whether a process has a file of the folder open for writing."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            if os.readlink(descriptor).startswith(f"{folder}/"):
                info = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text()
                flags = next(line.split()[1] for line in info.splitlines() if line.startswith("flags:"))
                if int(flags, 8) & _WRITABLE:
                    return True
    return False
