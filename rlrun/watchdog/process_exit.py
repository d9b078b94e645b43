"""The signal or exit status with which a worker's process ended, found without being its parent.

Ray reports only a broken connection. The driver therefore holds a pidfd of each worker process on its host: a kernel
of 6.15 or later returns the exit status from it. With an older kernel, /proc has the status until the parent reaps the
process. On other hosts, the worker's log names the signals that faulthandler catches.
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
from rlrun.observability.run_files import LOGS, log_name
from rlrun.system.errors import ExitStatus, RunError
from rlrun.watchdog import node_state

_WAIT_S = 1.0  # Ray may report an end before the kernel has recorded it
_INFO = struct.Struct("QQ11Ii")  # struct pidfd_info of linux/pidfd.h as far as its exit code
_INFO_SIZE = 64
_WANTED_EXIT = 1 << 3  # PIDFD_INFO_EXIT
_GET_INFO = (3 << 30) | (_INFO_SIZE << 16) | (0xFF << 8) | 11  # PIDFD_GET_INFO
_FATAL = {  # the last line that faulthandler writes
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
_MAX_LOG_AGE_S = 30.0  # an older log is about an earlier end
_RESIDENT = re.compile(r"anon-rss:(\d+)kB")


class ProcessExits:
    """Explains how the processes of watched workers ended."""

    def __init__(self, run_dir: Path):
        self._run_dir, self._host = run_dir, socket.gethostname()
        self._held: dict[str, tuple[int, int]] = {}  # worker -> pid, pidfd

    def watch(self, statuses: Iterable[WorkerStatus]) -> None:
        """Open a pidfd of every worker process on this host."""
        for status in statuses:
            pid, _ = self._held.get(status.worker, (0, -1))
            if status.host != self._host or status.pid == pid:
                continue
            self.forget(status.worker)
            with suppress(OSError):  # gone already
                self._held[status.worker] = (status.pid, os.pidfd_open(status.pid))

    def forget(self, worker: str) -> None:
        """Close the pidfd of a worker that is replaced."""
        _, descriptor = self._held.pop(worker, (0, -1))
        if descriptor >= 0:
            os.close(descriptor)

    def explain(self, failure: RunError) -> None:
        """Add to the message of a lost worker's error how its process ended, if that is known."""
        if failure.worker is None or failure.exit_status is not ExitStatus.worker_lost:
            return
        how = self.describe(failure.worker)
        if how:
            failure.message = f"{failure.message}: {how}"

    def describe(self, worker: str) -> str:
        """Describe how a worker's process ended; "" if that is unknown, or it still runs.

        Examples: "killed by SIGKILL", "it exited with status 0".
        """
        how = describe_end(*self._held.get(worker, (0, -1)))
        if not how:
            name = self._logged(worker)
            how = f"killed by {name}" if name else ""
        is_in_log = how.rpartition(" ")[2] in _FATAL.values()
        return f"{how}; its stack is in {self._log(worker)}" if is_in_log else how

    def close(self) -> None:
        """Close all pidfds."""
        for worker in list(self._held):
            self.forget(worker)

    def _log(self, worker: str) -> Path:
        return Path(LOGS) / f"{log_name(worker)}.log"

    def _logged(self, worker: str) -> str:
        """Return the signal that the worker's log ends with; "" if it ends otherwise, or is too old."""
        path = self._run_dir / self._log(worker)
        with suppress(OSError):
            found = re.findall(r"Fatal Python error: (.+)", node_state.tail(path))
            if found and time.time() - path.stat().st_mtime < _MAX_LOG_AGE_S:
                return _FATAL.get(found[-1].strip(), "")
        return ""


def describe_end(pid: int, descriptor: int) -> str:
    """Describe how a process that has ended did so; "" if that is unknown, or it still runs.

    descriptor: a pidfd of it, opened before; -1: there is none. Examples: "killed by SIGKILL", "killed by the kernel at
    12.0 GB: out of memory on its node".
    """
    status = _wait_status(pid, descriptor) if descriptor >= 0 else None
    if status is None:
        return _out_of_memory(pid) if pid and node_state.state(pid) in ("gone", "Z") else ""
    if os.WIFEXITED(status):
        return f"it exited with status {os.WEXITSTATUS(status)}"
    name = _signal(status)
    return (_out_of_memory(pid) if name == "SIGKILL" else "") or f"killed by {name}"


def _signal(status: int) -> str:
    number = os.WTERMSIG(status)
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _wait_status(pid: int, descriptor: int) -> int | None:
    """Return the wait status of a process that is ending; None if it goes on, or the kernel does not report it."""
    end = time.monotonic() + _WAIT_S
    while True:
        status = _reaped_status(descriptor)
        status = _zombie_status(pid) if status is None else status
        if status is not None or time.monotonic() > end:
            return status
        time.sleep(0.02)


def _reaped_status(descriptor: int) -> int | None:
    """Return the wait status of a process that its parent has reaped."""
    info = bytearray(_INFO_SIZE)
    struct.pack_into("Q", info, 0, _WANTED_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:  # the kernel is older, or the process still exists
        return None
    mask, *_, status = _INFO.unpack_from(info)
    return status if mask & _WANTED_EXIT else None


def _zombie_status(pid: int) -> int | None:
    """Return the wait status of a process that its parent has not reaped yet."""
    if node_state.state(pid) != "Z":
        return None
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().split()[-1])
    except (OSError, ValueError):
        return None


def _out_of_memory(pid: int) -> str:
    """Return what the kernel's log says about a process that was killed for memory; "" if it says nothing."""
    for line in node_state.oom_kills([pid]):
        resident = _RESIDENT.search(line)
        size = f" at {int(resident[1]) / 1e6:.1f} GB" if resident else ""
        where = "in its memory cgroup" if "emory cgroup out of memory" in line else "on its node"
        return f"killed by the kernel{size}: out of memory {where}"
    return ""
