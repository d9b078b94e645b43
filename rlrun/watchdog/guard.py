"""The guard of a driver: a process beside it that reports when the driver, or the disk of its run folder, hangs.

The driver sends heartbeats through a pipe. The guard needs neither Ray nor the driver's GIL, and prints before it
writes to a disk. It outlives a driver that is killed by some seconds: it reports how the driver ended and how the run
is resumed, and ends what is left of the private Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.config.recorded import CHECKPOINTS
from rlrun.data import checkpoint_folder
from rlrun.observability.run_files import last_object
from rlrun.observability.telemetry import seconds_since_alive
from rlrun.system.local_files import folder_for_ray
from rlrun.system.machine_load import num_oom_kills
from rlrun.watchdog.child_process import ignore_run_signals
from rlrun.watchdog.disk_probe import DiskProbe
from rlrun.watchdog.driver_monitor import DRIVER, DriverMonitor, report
from rlrun.watchdog.private_ray import end_of
from rlrun.watchdog.process_exit import describe_end
from rlrun.watchdog.supervised_process import SupervisedProcess
from rlrun.watchdog.timeout import run_with_timeout

_PERIOD_S = 1.0
_PIPE_BYTES = 65536
_LAST_S = 40  # the guard ends so long after the driver, whatever its disk or its console does
_SHOW_S = 5.0  # for the console to take a line, and for the run folder to show its checkpoints


class Guard:
    """The guard as a child of the driver, which ends it, and restarts it when it fails.

    Example::

        guard = Guard(run_dir, floor_s=20.0, limit_s=lambda: 45.0)     # an alarm comes after 20 s without a heartbeat
        guard.close()
    """

    def __init__(
        self,
        run_dir: Path,
        floor_s: float,
        limit_s: Callable[[], float],
        resume: str = "",
        temp_dir: str | None = None,
    ):
        """limit_s: returns how long the driver's main thread may now go without progress.

        resume: the command that resumes the run; "": nothing does. temp_dir: where a private Ray has its folder; None:
        the temporary folder of the system.
        """
        options = [f"--resume={resume}", f"--temp-dir={folder_for_ray(temp_dir).path}"]
        words = [str(run_dir), str(os.getpid()), str(floor_s), *options]
        self._command = [sys.executable, "-m", "rlrun.watchdog.guard", *words]
        self._limit_s = limit_s
        self._child = SupervisedProcess("guard of the driver", self._start, self._send_heartbeat, _PERIOD_S)

    def _start(self) -> subprocess.Popen:
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        for stream in (process.stdin, process.stdout):
            assert stream is not None  # both are pipes
            os.set_blocking(stream.fileno(), False)
        return process

    def _send_heartbeat(self, process: subprocess.Popen) -> bool:
        """Send the driver's state to the guard. Returns whether the guard has answered since the last call."""
        state = {"blocked_s": round(seconds_since_alive(), 2), "limit_s": round(self._limit_s(), 2)}
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):  # the guard has ended, or is so far behind that the pipe is full
            process.stdin.write(json.dumps(state).encode() + b"\n")
        return bool(process.stdout.read(_PIPE_BYTES))

    def close(self) -> None:
        """End the guard. Safe to call twice."""
        self._child.close()


def _read_heartbeat(timeout_s: float) -> dict | None:
    """Return the last heartbeat that arrives within `timeout_s`; None without one. A pipe holds a whole heartbeat."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return last_object(os.read(sys.stdin.fileno(), _PIPE_BYTES).decode().splitlines()) if ready else None


def _report_end(run_dir: Path, pid: int, how: str, resume: str, temp_dir: str) -> None:
    """Report how the driver ended and how the run is resumed, and end what is left of its Ray."""

    def show(lines: list[str]) -> None:
        shown = run_with_timeout("console", lambda: report(run_dir, lines), None, [], _SHOW_S)
        if shown is not None:  # else the terminal is gone
            shown.join(timeout=_SHOW_S)

    lines = [f"{DRIVER}@{socket.gethostname()} (pid {pid}) ended without closing the run: {how}"]
    newest = run_with_timeout("checkpoints", lambda: checkpoint_folder.latest(run_dir / CHECKPOINTS), None, [], _SHOW_S)
    if resume:
        where = f"from {newest.name}" if newest is not None else "no checkpoint is complete yet"
        lines.append(f"to resume ({where}): {resume}")
    show(lines)
    left = end_of(pid, temp_dir)
    if left:
        show(left)


def main() -> None:
    """Monitor the driver until it ends. If it did not end this process, it was killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("pid", type=int)
    parser.add_argument("floor_s", type=float)
    parser.add_argument("--resume", default="")
    parser.add_argument("--temp-dir", default=tempfile.gettempdir())
    options = parser.parse_args()
    ignore_run_signals()
    run_dir: Path = options.run_dir
    descriptor, oom_kills = -1, num_oom_kills()
    with suppress(OSError):  # it has ended already
        descriptor = os.pidfd_open(options.pid)
    monitor = DriverMonitor(
        run_dir, options.pid, options.floor_s, lambda lines: report(run_dir, lines), DiskProbe(run_dir)
    )
    while os.getppid() == options.pid:
        heartbeat = _read_heartbeat(_PERIOD_S)
        if heartbeat is not None:
            monitor.receive(heartbeat)
        monitor.check()
        with suppress(BrokenPipeError):  # the driver has ended
            os.write(sys.stdout.fileno(), b".")
        time.sleep(_PERIOD_S / 4)
    signal.alarm(_LAST_S)
    how = describe_end(options.pid, descriptor) or "nobody knows how"
    if how == "killed by SIGKILL" and num_oom_kills() > oom_kills:
        how += ": the kernel killed a process of its control group, perhaps this one, for memory"
    _report_end(run_dir, options.pid, how, options.resume, options.temp_dir)


if __name__ == "__main__":
    main()
