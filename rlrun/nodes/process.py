"""Ray on this node as a child process, which is ended with all its own children."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from rlrun.cluster.membership import joined
from rlrun.config.simulator_spec import SENTINEL
from rlrun.nodes.command import NodeSettings, command_line, environment
from rlrun.nodes.head import Head
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.process_io import SHIELDED, signals_held
from rlrun.watchdog.sentinel_process import SentinelProcess

_POLL_S = 0.2
_END_S = 10.0
_TAIL_LINES = 12
_OWN_TIMEOUT = "The current node timed out during startup"  # Ray's own limit of 30 s is too short on a busy node
_LIBC = ctypes.CDLL(None, use_errno=True)  # opened before any fork
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class NodeProcess:
    """The process `ray start --block`. `close` ends it with all its children.

    Its output is in `start.log` in the temporary folder. It ends when this process dies for any reason.
    """

    def __init__(self, settings: NodeSettings, head: Head):
        self.settings, self.head = settings, head
        self._log = Path(settings.temp_dir) / "start.log"
        folders = [folder for folder in (settings.temp_dir, settings.spill_dir) if folder is not None]
        self._sentinel = SentinelProcess(settings.address, folders)  # outside Ray, which it outlives
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # `close` finds orphans as children of this process
        self._process = self._start()

    def _start(self) -> subprocess.Popen:
        with signals_held(*SHIELDED), self._log.open("ab") as stream:
            return subprocess.Popen(
                command_line(self.settings),
                env=os.environ | environment(self.settings) | {SENTINEL: self._sentinel.where},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 (one system call)
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        """Whether Ray still runs on this node."""
        return self._process.poll() is None

    def wait_joined(self, deadline_s: float, is_stopped: Callable[[], bool]) -> None:
        """Wait until this node is part of the cluster, or the head has ended, since the head's command may be short.

        Raises RunError with Ray's last lines if Ray ends, or at the deadline.
        """
        end, is_second = time.monotonic() + deadline_s, False
        while not is_stopped() and not self.head.has_ended:
            if not self.head.is_running:
                time.sleep(_POLL_S)
                continue
            if not self.is_alive and not is_second and _OWN_TIMEOUT in self._log.read_text(errors="replace"):
                self._process, is_second = self._start(), True
            if not self.is_alive:
                raise self.lost("Ray did not start")
            if self.settings.name in joined(self.settings.head):
                return
            if time.monotonic() > end:
                raise self.lost(f"Ray has not started within {deadline_s:g} s")
            time.sleep(_POLL_S)

    def lost(self, what: str) -> RunError:
        """Return the error for a Ray that has ended, with its last lines."""
        lines = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return RunError(
            f"{what} on node {self.settings.name} ({self.settings.address}).",
            cause="Its last lines were:\n" + "\n".join(lines),
            remedy=f"Read the logs in {self.settings.temp_dir}, which is kept until the next start on this node.",
            exit_status=ExitStatus.worker_lost,
        )

    def close(self) -> None:
        """End the sentinel, and kill the processes of `ray start`, none of which needs a graceful end."""
        self._sentinel.close()
        end = time.monotonic() + _END_S
        while (left := psutil.Process().children(recursive=True)) and time.monotonic() < end:
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=_POLL_S)
        self._process.wait(timeout=_END_S)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")
