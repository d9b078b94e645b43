"""Sentinel of a node: a process outside Ray that returns evidence on request, also when Ray hangs or is dead.

It listens on one address, answers only requests with its token, and ends with the process that started it.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import secrets
import socket
import socketserver
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.system.run_queue import queue_seconds
from rlrun.watchdog import node_state
from rlrun.watchdog.probes import run_with_timeout
from rlrun.watchdog.stacks import Stack, dump_worker, group_by_stack
from rlrun.watchdog.supervised import SupervisedProcess, end_with_parent, ignore_run_signals

TOKEN = "RLRUN_SENTINEL_TOKEN"  # in the environment of the sentinel only
_CONNECT_TIMEOUT_S = 3.0
_HEALTH_PERIOD_S = 5.0  # between two health checks
_BACKLOG = 16
_EVIDENCE_TIMEOUT_S = 15.0  # for one kind of evidence; a dead file system must not delay the others
MAX_REQUEST_BYTES = 1_000_000


class SentinelProcess:
    """A sentinel's process as a child of this one; it keeps its address and token over a restart.

    Example::

        sentinel = SentinelProcess("10.77.0.2", ["/data/spill"])
        sentinel.where     # "10.77.0.2:40123/5f…", which goes into the environment of the node's workers
    """

    def __init__(self, host: str, folders: Sequence[str]):
        self._folders = folders
        self._socket = socket.create_server((host, 0), backlog=_BACKLOG)
        self._token = secrets.token_hex(16)
        self.where = f"{host}:{self._socket.getsockname()[1]}/{self._token}"
        self._child = SupervisedProcess("sentinel", self._start, self._answers, _HEALTH_PERIOD_S)

    @property
    def pid(self) -> int:
        """Process id of the running sentinel."""
        return self._child.process.pid

    def _start(self) -> subprocess.Popen:
        number = self._socket.fileno()
        words = [word for folder in self._folders for word in ("--folder", folder)]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "rlrun.watchdog.sentinel", "--socket", str(number), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[number],
            env=os.environ | {TOKEN: self._token},
        )

    def _answers(self, _process: subprocess.Popen) -> bool:
        try:
            request_evidence(self.where, "", {}, False, _CONNECT_TIMEOUT_S)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the sentinel. Safe to call twice."""
        self._child.close()
        self._socket.close()


def request_evidence(where: str, run_dir: str, processes: Mapping[str, int], is_full: bool, timeout_s: float) -> dict:
    """Request evidence about workers' processes from the sentinel at `where` ("host:port/token").

    Returns like `node_evidence`.

    Raises OSError if it cannot be reached, refuses the token, or takes longer than `timeout_s`.
    """
    address, _, token = where.partition("/")
    host, _, port = address.rpartition(":")
    request = {"token": token, "run_dir": run_dir, "processes": dict(processes), "is_full": is_full}
    with socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline()
    try:
        return json.loads(line)
    except ValueError as error:
        raise OSError(f"the sentinel at {address} returned an unreadable answer") from error


def quick_evidence(pids: Mapping[str, int]) -> dict:
    """Return the states of processes, and how long each of their threads has waited for a core. pids: by worker."""
    return {
        "states": {worker: node_state.state(pid) for worker, pid in pids.items()},
        "queue_seconds": {worker: queue_seconds([pid]) for worker, pid in pids.items()},
    }


def node_evidence(request: dict, folders: Sequence[str]) -> dict:
    """Return the states of processes; if `is_full`, also their stacks, the node's shortages, and files.

    Example request: {"run_dir": "/runs/a", "processes": {"env/1": 19016}, "is_full": true}.
    folders: more folders whose disks are checked. Evidence that takes too long is omitted and named in a file.
    """
    pids: dict[str, int] = request["processes"]
    if not request["is_full"]:
        return quick_evidence(pids)
    states = quick_evidence(pids)["states"]
    run_dir = request["run_dir"]
    watched = [*folders, *node_state.ray_folders(pids.values()).values(), run_dir, "/tmp", "/dev/shm"]
    failed: list[str] = []
    stacks = run_with_timeout("stacks", lambda: _stacks(pids, run_dir), ({}, {}), failed, _EVIDENCE_TIMEOUT_S)
    shares = run_with_timeout("disks", lambda: node_state.disks(watched), {}, failed, _EVIDENCE_TIMEOUT_S)
    files = run_with_timeout("files", lambda: node_state.files(run_dir, pids), {}, failed, _EVIDENCE_TIMEOUT_S)
    files["stacks.txt"] = _stack_file(*stacks)
    if failed:
        files["unanswered.txt"] = f"not collected within {_EVIDENCE_TIMEOUT_S:.0f} s: {', '.join(failed)}\n"
    return {
        "states": states,
        "full_disks": node_state.full_disks(shares),
        "memory": node_state.short_memory(),
        "oom_kills": run_with_timeout(
            "kernel log", lambda: node_state.oom_kills(pids.values()), [], failed, _EVIDENCE_TIMEOUT_S
        ),
        "stacks": {
            worker: {
                "where": stack.where,
                "frames": [str(frame) for frame in stack.frames],
                "holds_gil": stack.holds_gil,
                "is_in_collective": stack.is_in_collective,
            }
            for worker, stack in stacks[0].items()
        },
        "files": files,
    }


def _stacks(pids: dict[str, int], run_dir: str) -> tuple[dict[str, Stack], dict[str, str]]:
    stacks = {}
    denied = {}
    for worker, pid in pids.items():
        try:
            stacks[worker] = dump_worker(pid, Path(run_dir) / "logs" / f"{worker.replace('/', '-')}.log")
        except OSError as error:
            denied[worker] = str(error)
    return stacks, denied


def _stack_file(stacks: dict[str, Stack], denied: dict[str, str]) -> str:
    parts = [
        f"=== {len(members)} of {len(stacks)}: {', '.join(members)}\n{stack.text}"
        for members, stack in group_by_stack(stacks)
    ]
    return "\n\n".join(parts + [f"=== no stack of {worker}: {why}" for worker, why in denied.items()]) + "\n"


class _Handler(socketserver.StreamRequestHandler):
    server: _Server
    timeout = 10.0  # for a complete request to arrive

    def handle(self) -> None:
        line = self.rfile.readline(MAX_REQUEST_BYTES)
        try:
            request = json.loads(line)
            is_known = hmac.compare_digest(str(request["token"]), self.server.token)
        except (ValueError, KeyError, TypeError):
            return
        if is_known:
            self.wfile.write(json.dumps(node_evidence(request, self.server.folders)).encode() + b"\n")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, token: str, folders: list[str]):
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.token = token
        self.folders = folders

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that time out or break, since the console belongs to the run."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve on the parent's listening socket until the parent ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="file descriptor of the listening socket")
    parser.add_argument("--folder", action="append", default=[], help="a folder whose disk matters to this node")
    options = parser.parse_args()
    end_with_parent(os.getppid())
    ignore_run_signals()
    server = _Server(socket.socket(fileno=options.socket), os.environ.pop(TOKEN), options.folder)
    server.serve_forever(poll_interval=5.0)


if __name__ == "__main__":
    main()
