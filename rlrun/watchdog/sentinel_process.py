"""Starting a sentinel, and asking one."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

_START_S = 20.0
_CONNECT_S = 3.0


class SentinelProcess:
    """A sentinel as a child of this process.

    Example::

        sentinel = SentinelProcess("10.77.0.2", ["/data/spill"])
        sentinel.where     # "10.77.0.2:40123/5f…": goes into the environment of the node's workers
    """

    def __init__(self, host: str, folders: Sequence[str]):
        words = [word for folder in folders for word in ("--folder", folder)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rlrun.watchdog.sentinel", "--host", host, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        line = self._process.stdout.readline().split() if ready else []
        self.where = f"{host}:{line[0]}/{line[1]}" if len(line) == 2 else ""  # the run does without

    def close(self) -> None:
        """End it. Safe to call twice."""
        self._process.kill()
        self._process.wait(timeout=5.0)


def ask(where: str, run_dir: str, processes: Mapping[str, int], is_full: bool, timeout_s: float) -> dict:
    """What the sentinel at `where` ("host:port/token") tells of these workers' processes. Raises OSError."""
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
        raise OSError(f"the sentinel at {address} told nothing that can be read") from error
