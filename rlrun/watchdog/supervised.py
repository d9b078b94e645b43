"""Supervised child processes, the causes of a process's end, and the end of a private Ray.

A process's end is explained by its pidfd (status and signal, also of processes that are not children, on new kernels),
by the kernel's log on OOM kills, and by the last line of faulthandler in the worker's log.
"""

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

from rlrun.observability.run_files import LOGS, log_name
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import lock_holder, stale_folders
from rlrun.system.machine_load import local_load_factor
from rlrun.system.status import WorkerStatus
from rlrun.watchdog import node_state

logger = logging.getLogger(__name__)

_UNRESPONSIVE_S = 15.0  # time without an answer until a restart; more on a loaded host
_KILL_WAIT_S = 5.0
_MAX_RESTARTS = 20  # after these, the next one would end as well
_PR_SET_PDEATHSIG = 1
_EXIT_RECORD_S = 1.0  # Ray may report an end before the kernel has recorded it
_PIDFD_INFO = struct.Struct("QQ11Ii")  # struct pidfd_info of linux/pidfd.h up to its exit code
_PIDFD_INFO_BYTES = 64
_PIDFD_INFO_EXIT = 1 << 3  # PIDFD_INFO_EXIT
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO_BYTES << 16) | (0xFF << 8) | 11  # PIDFD_GET_INFO
_FATAL_SIGNALS = {  # by the last line that faulthandler writes
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
_MAX_LOG_AGE_S = 30.0  # an older log is about an earlier end
_RESIDENT_MEMORY = re.compile(r"anon-rss:(\d+)kB")
RAY_FOLDER_PREFIX = "rlrun-ray-"
_RAY_KILL_S = 10.0
_RAY_POLL_S = 0.05
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


class SupervisedProcess:
    """A child process that is restarted when it ends, is stopped or does not answer.

    start: starts it. is_healthy: called every `period_s`; returns whether it has answered.

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
        self._name = name
        self._start = start
        self._is_healthy = is_healthy
        self._period_s = period_s
        self._note = note
        self.process = start()
        self._num_restarts = 0
        self._answered = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"supervisor of the {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self._is_over.set()
        self._thread.join(timeout=_KILL_WAIT_S)
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
        is_late = silent_s > local_load_factor() * _UNRESPONSIVE_S
        return f"has not answered for {silent_s:.0f} s" if is_late else ""

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
        """Report in a separate thread: the log may be on a disk that hangs, and supervision must continue."""
        threading.Thread(target=self._note, args=(text,), daemon=True).start()

    def _end(self) -> None:
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # the process hangs in the kernel
            self.process.wait(timeout=_KILL_WAIT_S)


def describe_exit(status: int) -> str:
    """Describe a return code. Example: describe_exit(-9) == "killed by SIGKILL"."""
    return f"status {status}" if status >= 0 else f"killed by {_signal_name(-status)}"


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent (a pid) ends; exit now if it has already ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def ignore_run_signals() -> None:
    """Ignore the signals that stop a run, since evidence may be needed while the run stops."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


class ProcessExits:
    """Explanations of how the processes of watched workers ended."""

    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._host = socket.gethostname()
        self._pidfds: dict[str, tuple[int, int]] = {}  # worker -> pid, pidfd

    def watch(self, statuses: Iterable[WorkerStatus]) -> None:
        """Open a pidfd of every worker process on this host."""
        for status in statuses:
            pid, _ = self._pidfds.get(status.worker, (0, -1))
            if status.host != self._host or status.pid == pid:
                continue
            self.forget(status.worker)
            with suppress(OSError):  # gone already
                self._pidfds[status.worker] = (status.pid, os.pidfd_open(status.pid))

    def forget(self, worker: str) -> None:
        """Close the pidfd of a worker that is replaced."""
        _, descriptor = self._pidfds.pop(worker, (0, -1))
        if descriptor >= 0:
            os.close(descriptor)

    def explain(self, failure: RunError) -> None:
        """Add the cause of the process's end, if known, to the message of a lost worker's error."""
        if failure.worker is None or failure.exit_status is not ExitStatus.worker_lost:
            return
        how = self.describe(failure.worker)
        if how:
            failure.message = f"{failure.message}: {how}"

    def describe(self, worker: str) -> str:
        """Describe the end of a worker's process; "" if that is unknown, or if it still runs.

        Examples: "killed by SIGKILL", "it exited with status 0".
        """
        how = describe_end(*self._pidfds.get(worker, (0, -1)))
        if not how:
            name = self._signal_in_log(worker)
            how = f"killed by {name}" if name else ""
        is_in_log = how.rpartition(" ")[2] in _FATAL_SIGNALS.values()
        return f"{how}; its stack is in {self._log(worker)}" if is_in_log else how

    def close(self) -> None:
        """Close all pidfds."""
        for worker in list(self._pidfds):
            self.forget(worker)

    def _log(self, worker: str) -> Path:
        return Path(LOGS) / f"{log_name(worker)}.log"

    def _signal_in_log(self, worker: str) -> str:
        """Return the signal that the worker's log ends with; "" if it ends otherwise, or is too old."""
        path = self._run_dir / self._log(worker)
        with suppress(OSError):
            signals = re.findall(r"Fatal Python error: (.+)", node_state.tail(path))
            if signals and time.time() - path.stat().st_mtime < _MAX_LOG_AGE_S:
                return _FATAL_SIGNALS.get(signals[-1].strip(), "")
        return ""


def describe_end(pid: int, descriptor: int) -> str:
    """Describe the end of a process; "" if that is unknown, or if it still runs.

    descriptor: its pidfd, opened before its end; -1: none. Examples: "killed by SIGKILL", "killed by the kernel at
    12.0 GB: out of memory on its node".
    """
    status = _wait_status(pid, descriptor) if descriptor >= 0 else None
    if status is None:
        return _out_of_memory(pid) if pid and node_state.state(pid) in ("gone", "Z") else ""
    if os.WIFEXITED(status):
        return f"it exited with status {os.WEXITSTATUS(status)}"
    name = _signal_name(os.WTERMSIG(status))
    return (_out_of_memory(pid) if name == "SIGKILL" else "") or f"killed by {name}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _wait_status(pid: int, descriptor: int) -> int | None:
    """Return the wait status of a process that is ending; None if it still runs, or the kernel does not report it."""
    end = time.monotonic() + _EXIT_RECORD_S
    while True:
        status = _reaped_status(descriptor)
        status = _zombie_status(pid) if status is None else status
        if status is not None or time.monotonic() > end:
            return status
        time.sleep(0.02)


def _reaped_status(descriptor: int) -> int | None:
    """Return the wait status of a process that its parent has reaped."""
    info = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
    except OSError:  # the kernel is older, or the process still exists
        return None
    mask, *_, status = _PIDFD_INFO.unpack_from(info)
    return status if mask & _PIDFD_INFO_EXIT else None


def _zombie_status(pid: int) -> int | None:
    """Return the wait status of a process that its parent has not reaped yet."""
    if node_state.state(pid) != "Z":
        return None
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().split()[-1])
    except (OSError, ValueError):
        return None


def _out_of_memory(pid: int) -> str:
    """Describe an OOM kill of a process from the kernel's log; "" if there is none."""
    for line in node_state.oom_kills([pid]):
        resident = _RESIDENT_MEMORY.search(line)
        size = f" at {int(resident[1]) / 1e6:.1f} GB" if resident else ""
        where = "in its memory cgroup" if "emory cgroup out of memory" in line else "on its node"
        return f"killed by the kernel{size}: out of memory {where}"
    return ""


def end_processes(folder: str) -> list[int]:
    """Kill this user's processes of the Ray in `folder`: services, agents and workers. Returns their ids.

    Processes that only name the folder or read in it, such as `tail`, are not killed.
    """
    ended: set[int] = set()
    end = time.monotonic() + _RAY_KILL_S
    while (running := list(_ray_processes(folder))) and time.monotonic() < end:
        for process in running:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        ended |= {process.pid for process in running}
        time.sleep(_RAY_POLL_S)
    return sorted(ended)


def end_left_over_ray(pid: int, parent: str) -> list[str]:
    """End the left-over processes of Rays that the dead process `pid` started in folders below `parent`.

    Returns a sentence on each, [] if there is none.
    """
    done = []
    for folder in stale_folders([parent], RAY_FOLDER_PREFIX):
        if lock_holder(folder) == pid:
            ended = end_processes(str(folder))
            shutil.rmtree(folder, ignore_errors=True)
            done.append(f"ended {len(ended)} processes of its Ray, and removed {folder}")
    return done


def gcs_address(folder: str) -> str | None:
    """Return the address of the head service of the Ray in `folder`, from an option of its raylet; None without one."""
    for process in _ray_processes(folder):
        with suppress(psutil.Error):
            for word in process.cmdline():
                name, _, value = word.partition("=")
                if name.lstrip("-").replace("_", "-") == "gcs-address" and value:
                    return value
    return None


def _ray_processes(folder: str) -> Iterator[psutil.Process]:
    """Yield the processes of the Ray in `folder`: an option names it, or they write to a file in it.

    Only an option "--option=<folder>/…" counts, since a sentinel's arguments name the folder too. Ray's agents and
    workers replace their command lines, but write logs there.
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
                if int(flags, 8) & _WRITE_FLAGS:
                    return True
    return False
