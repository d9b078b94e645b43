"""How a worker's process ended: by which signal or exit status, as far as the kernel tells who is not its parent.

Ray says only that a connection broke. A process of this host is held by a file descriptor, from which a kernel of 6.15
or later tells its exit status once it is gone; before that, /proc tells it while nobody has fetched it. Where neither
does, as on other hosts, the worker's log has the signals that faulthandler sees.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rlrun.data.messages import WorkerStatus
from rlrun.observability.logs import log_name
from rlrun.observability.run_files import LOGS
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus
from rlrun.watchdog import node_state

_PATIENCE_S = 1.0  # Ray hears of an end before the kernel has it written down
_INFO = struct.Struct("QQ11Ii")  # struct pidfd_info of linux/pidfd.h as far as its exit code
_INFO_SIZE = 64
_WANTED_EXIT = 1 << 3  # PIDFD_INFO_EXIT
_GET_INFO = (3 << 30) | (_INFO_SIZE << 16) | (0xFF << 8) | 11  # PIDFD_GET_INFO
_FATAL = {  # what faulthandler writes last
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
_FRESH_S = 30.0  # how old a log may be that is about an end just now
_RESIDENT = re.compile(r"anon-rss:(\d+)kB")


class ProcessEnds:
    """Of the workers whose statuses it has seen."""

    def __init__(self, run_dir: Path):
        self._run_dir, self._host = run_dir, socket.gethostname()
        self._held: dict[str, tuple[int, int]] = {}  # worker -> pid, its file descriptor

    def see(self, statuses: Iterable[WorkerStatus]) -> None:
        """Hold the processes of this host."""
        for status in statuses:
            pid, _ = self._held.get(status.worker, (0, -1))
            if status.host != self._host or status.pid == pid:
                continue
            self.forget(status.worker)
            with suppress(OSError):  # gone already
                self._held[status.worker] = (status.pid, os.pidfd_open(status.pid))

    def forget(self, worker: str) -> None:
        """Another process takes the worker's place."""
        _, descriptor = self._held.pop(worker, (0, -1))
        if descriptor >= 0:
            os.close(descriptor)

    def tell(self, failure: RunError) -> None:
        """Add to the failure how the process of its worker ended, where that is what failed and somebody knows."""
        if failure.worker is None or failure.exit_status is not ExitStatus.worker_lost:
            return
        how = self.told(failure.worker)
        if how:
            failure.message = f"{failure.message}: {how}"

    def told(self, worker: str) -> str:
        """Examples: "killed by SIGKILL", "it exited with status 0"; "" where nobody knows, or it lives."""
        pid, descriptor = self._held.get(worker, (0, -1))
        status = _waited(pid, descriptor) if descriptor >= 0 else None
        if status is not None and os.WIFEXITED(status):
            return f"it exited with status {os.WEXITSTATUS(status)}"
        name = _signal(status) if status is not None else self._logged(worker)
        if name == "SIGKILL":
            return _out_of_memory(pid) or "killed by SIGKILL"
        if not name:
            return ""
        return f"killed by {name}" + (f"; its stack is in {self._log(worker)}" if name in _FATAL.values() else "")

    def close(self) -> None:
        """Let go of all processes."""
        for worker in list(self._held):
            self.forget(worker)

    def _log(self, worker: str) -> Path:
        return Path(LOGS) / f"{log_name(worker)}.log"

    def _logged(self, worker: str) -> str:
        """The signal that the worker's log ends with; "" where it ends otherwise, or is old."""
        path = self._run_dir / self._log(worker)
        with suppress(OSError):
            found = re.findall(r"Fatal Python error: (.+)", node_state.tail(path))
            if found and time.time() - path.stat().st_mtime < _FRESH_S:
                return _FATAL.get(found[-1].strip(), "")
        return ""


def _signal(status: int) -> str:
    number = os.WTERMSIG(status)
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _waited(pid: int, descriptor: int) -> int | None:
    """The wait status of a process that ends just now; None where it does not, or the kernel does not tell."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        status = _fetched(descriptor)
        status = _unfetched(pid) if status is None else status
        if status is not None or time.monotonic() > end:
            return status
        time.sleep(0.02)


def _fetched(descriptor: int) -> int | None:
    """Of a process whose parent has been told its end."""
    info = bytearray(_INFO_SIZE)
    struct.pack_into("Q", info, 0, _WANTED_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:  # an older kernel, or the process is not gone
        return None
    mask, *_, status = _INFO.unpack_from(info)
    return status if mask & _WANTED_EXIT else None


def _unfetched(pid: int) -> int | None:
    """Of a process whose parent has not been told yet."""
    if node_state.state(pid) != "Z":
        return None
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().split()[-1])
    except (OSError, ValueError):
        return None


def _out_of_memory(pid: int) -> str:
    """What the kernel's log says of a process that was killed for memory; "" where it says nothing."""
    for line in node_state.oom_kills([pid]):
        resident = _RESIDENT.search(line)
        size = f" at {int(resident[1]) / 1e6:.1f} GB" if resident else ""
        where = "in its memory cgroup" if "emory cgroup out of memory" in line else "on its node"
        return f"killed by the kernel{size}: out of memory {where}"
    return ""
