"""The sentinel as a child process that is restarted when it fails, and requests to a sentinel."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from rlrun.watchdog.supervised_process import SupervisedProcess

TOKEN = "RLRUN_SENTINEL_TOKEN"  # in the environment of the sentinel only
_CONNECT_S = 3.0
_PERIOD_S = 5.0  # between two health checks
_BACKLOG = 16


class SentinelProcess:
    """A sentinel as a child of this process, which keeps its address and token over a restart.

    Example::

        sentinel = SentinelProcess("10.77.0.2", ["/data/spill"])
        sentinel.where     # "10.77.0.2:40123/5f…", which goes into the environment of the node's workers
    """

    def __init__(self, host: str, folders: Sequence[str]):
        self._folders = folders
        self._socket = socket.create_server((host, 0), backlog=_BACKLOG)
        self._token = secrets.token_hex(16)
        self.where = f"{host}:{self._socket.getsockname()[1]}/{self._token}"
        self._child = SupervisedProcess("sentinel", self._start, self._answers, _PERIOD_S)

    @property
    def pid(self) -> int:
        """Process id of the sentinel that serves now."""
        return self._child.process.pid

    def _start(self) -> subprocess.Popen:
        number = self._socket.fileno()
        words = [word for folder in self._folders for word in ("--folder", folder)]
        return subprocess.Popen(
            [sys.executable, "-m", "rlrun.watchdog.sentinel", "--socket", str(number), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[number],
            env=os.environ | {TOKEN: self._token},
        )

    def _answers(self, _process: subprocess.Popen) -> bool:
        try:
            ask(self.where, "", {}, False, _CONNECT_S)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the sentinel. Safe to call twice."""
        self._child.close()
        self._socket.close()


def ask(where: str, run_dir: str, processes: Mapping[str, int], is_full: bool, timeout_s: float) -> dict:
    """Ask the sentinel at `where` ("host:port/token") about these workers' processes; see `node_evidence`.

    Raises OSError if it cannot be reached, refuses the token, or takes longer than `timeout_s`.
    """
    address, _, token = where.partition("/")
    host, _, port = address.rpartition(":")
    request = {"token": token, "run_dir": run_dir, "processes": dict(processes), "is_full": is_full}
    with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline()
    try:
        return json.loads(line)
    except ValueError as error:
        raise OSError(f"the sentinel at {address} returned nothing that can be read") from error
