"""Supervised processes: their start, what is known of their end, and the end of a private Ray."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from rlrun.data.messages import WorkerStatus
from rlrun.observability.run_files import LOGS, log_name
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import lock_holder, stale_folders
from rlrun.watchdog import node_state

logger = logging.getLogger(__name__)

_UNRESPONSIVE_S = 15.0  # without an answer before it is restarted; a loaded host may take some seconds
_END_S = 5.0
_MAX_RESTARTS = 20  # after so many, the next one would end as well


class SupervisedProcess:
    """Supervises one child. `start` starts it; `is_healthy` is called every `period_s` and returns whether it answered.

    Example::

        child = SupervisedProcess("sentinel", lambda: subprocess.Popen(["sleep", "60"]), lambda process: True, 5.0)
        child.close()
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], subprocess.Popen],
        is_healthy: Callable[[subprocess.Popen], bool],
        period_s: float,
        note: Callable[[str], None] = logger.warning,
    ):
        """note: receives a sentence about every restart."""
        self._name, self._start, self._is_healthy, self._period_s, self._note = name, start, is_healthy, period_s, note
        self.process = start()
        self._num_restarts = 0
        self._answered = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"supervisor of the {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self._is_over.set()
        self._thread.join(timeout=_END_S)
        self._end()

    def _watch(self) -> None:
        while not self._is_over.wait(self._period_s):
            why = self._symptom()
            if why and not self._is_over.is_set() and not self._restart(why):
                return

    def _symptom(self) -> str:

        status = self.process.poll()
        if status is not None:
            return f"ended ({describe_exit(status)})"
        if node_state.state(self.process.pid) in ("T", "t"):
            return "was stopped (state T)"
        if self._is_healthy(self.process):
            self._answered = time.monotonic()
        silent_s = time.monotonic() - self._answered
        return f"has not answered for {silent_s:.0f} s" if silent_s > _UNRESPONSIVE_S else ""

    def _restart(self, why: str) -> bool:
        """Start the process again. Returns False after the last restart."""
        self._end()
        self._num_restarts += 1
        name = f"the {self._name} of {socket.gethostname()}"
        if self._num_restarts > _MAX_RESTARTS:
            self._report(f"{name} {why}, as {_MAX_RESTARTS} before it; it is not started again")
            return False
        try:
            self.process = self._start()
            self._report(f"{name} {why}; started again")
        except OSError as error:
            self._report(f"{name} {why}, and cannot be started again now: {error}")
        self._answered = time.monotonic()
        return True

    def _report(self, text: str) -> None:
        """Report in a thread of its own: the log may be on a disk that hangs, and the supervision must go on."""
        threading.Thread(target=self._note, args=(text,), daemon=True).start()

    def _end(self) -> None:
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # the process hangs in the kernel
            self.process.wait(timeout=_END_S)


def describe_exit(status: int) -> str:
    """Describe a return code. Example: describe_exit(-9) == "killed by SIGKILL"."""
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"


_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent (a pid) ends; exit now if that has happened already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def ignore_run_signals() -> None:
    """Ignore the signals that stop a run, since evidence may be needed while the run stops."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


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


PREFIX = "rlrun-ray-"
_RAY_END_S = 10.0
_POLL_S = 0.05
_WRITABLE = os.O_WRONLY | os.O_RDWR


def end_processes(folder: str) -> list[int]:
    """Kill this user's processes of the Ray in `folder`: services, agents and workers. Returns their ids.

    Others that name the folder or read in it, such as a person's `tail`, are left alone.
    """
    ended: set[int] = set()
    end = time.monotonic() + _RAY_END_S
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
        if lock_holder(folder) == pid:
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
