"""The guard of a driver: a process beside it that reports when the driver, or the disk of its run folder, hangs.

The driver sends heartbeats through a pipe. The guard needs neither Ray nor the driver's GIL, and prints before it
writes to a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.observability.run_files import last_object
from rlrun.observability.telemetry import seconds_since_alive
from rlrun.watchdog.child_process import end_with_parent, ignore_run_signals
from rlrun.watchdog.disk_probe import DiskProbe
from rlrun.watchdog.driver_monitor import DriverMonitor, report
from rlrun.watchdog.supervised_process import SupervisedProcess

_PERIOD_S = 1.0
_PIPE_BYTES = 65536


class Guard:
    """The guard as a child of the driver. It ends with the driver, which restarts it when it fails.

    Example::

        guard = Guard(run_dir, floor_s=20.0, limit_s=lambda: 45.0)     # an alarm comes after 20 s without a heartbeat
        guard.close()
    """

    def __init__(self, run_dir: Path, floor_s: float, limit_s: Callable[[], float]):
        """limit_s: returns how long the driver's main thread may now go without progress."""
        self._command = [sys.executable, "-m", "rlrun.watchdog.guard", str(run_dir), str(os.getpid()), str(floor_s)]
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


def main() -> None:
    """Monitor the driver until it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("pid", type=int)
    parser.add_argument("floor_s", type=float)
    options = parser.parse_args()
    end_with_parent(options.pid)
    ignore_run_signals()
    run_dir: Path = options.run_dir
    monitor = DriverMonitor(
        run_dir, options.pid, options.floor_s, lambda lines: report(run_dir, lines), DiskProbe(run_dir)
    )
    while os.getppid() == options.pid:
        heartbeat = _read_heartbeat(_PERIOD_S)
        if heartbeat is not None:
            monitor.receive(heartbeat)
        monitor.check()
        os.write(sys.stdout.fileno(), b".")
        time.sleep(_PERIOD_S / 4)


if __name__ == "__main__":
    main()
