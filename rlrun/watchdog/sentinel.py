"""The sentinel of a node: a process outside Ray that collects evidence on demand, also when Ray is stuck or dead.

It listens on one address, answers only those who know its token, and ends with the process that started it.
"""

from __future__ import annotations

import argparse
import ctypes
import hmac
import json
import os
import signal
import socket
import socketserver
import sys
from pathlib import Path
from typing import Any

from rlrun.watchdog import node_state
from rlrun.watchdog.bounded import bounded
from rlrun.watchdog.sentinel_process import TOKEN
from rlrun.watchdog.stacks import Stack, dump_worker, grouped

MAX_REQUEST_BYTES = 1_000_000
_PART_S = 15.0  # for one kind of evidence: a dead file system must not hold up the rest
_PR_SET_PDEATHSIG = 1


def answer(request: dict, folders: list[str]) -> dict:
    """Example request: {"run_dir": "/runs/a", "processes": {"env/1": 19016}, "is_full": true}.

    Returns the states of the processes; where `is_full`, also their stacks, what is short on the node, and files.
    """
    pids: dict[str, int] = request["processes"]
    states = {worker: node_state.state(pid) for worker, pid in pids.items()}
    if not request["is_full"]:
        return {"states": states}
    run_dir = request["run_dir"]
    watched = [*folders, *node_state.ray_folders(pids.values()).values(), run_dir, "/tmp", "/dev/shm"]
    late: list[str] = []
    stacks = bounded("stacks", lambda: _stacks(pids, run_dir), ({}, {}), late, _PART_S)
    shares = bounded("disks", lambda: node_state.disks(watched), {}, late, _PART_S)
    files = bounded("files", lambda: node_state.files(run_dir, pids, pids.values()), {}, late, _PART_S)
    files["stacks.txt"] = _stack_file(*stacks)
    if late:
        files["unanswered.txt"] = f"not collected within {_PART_S:.0f} s: {', '.join(late)}\n"
    return {
        "states": states,
        "full_disks": node_state.full_disks(shares),
        "memory": node_state.short_memory(),
        "oom_kills": bounded("kernel log", lambda: node_state.oom_kills(pids.values()), [], late, _PART_S),
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
    stacks, denied = {}, {}
    for worker, pid in pids.items():
        try:
            stacks[worker] = dump_worker(pid, Path(run_dir) / "logs" / f"{worker.replace('/', '-')}.log")
        except OSError as error:
            denied[worker] = str(error)
    return stacks, denied


def _stack_file(stacks: dict[str, Stack], denied: dict[str, str]) -> str:
    parts = [
        f"=== {len(members)} of {len(stacks)}: {', '.join(members)}\n{stack.text}" for members, stack in grouped(stacks)
    ]
    return "\n\n".join(parts + [f"=== no stack of {worker}: {why}" for worker, why in denied.items()]) + "\n"


class _Handler(socketserver.StreamRequestHandler):
    server: _Server
    timeout = 10.0  # for a request to come in whole

    def handle(self) -> None:
        line = self.rfile.readline(MAX_REQUEST_BYTES)
        try:
            request = json.loads(line)
            is_known = hmac.compare_digest(str(request["token"]), self.server.token)
        except (ValueError, KeyError, TypeError):
            return
        if is_known:
            self.wfile.write(json.dumps(answer(request, self.server.folders)).encode() + b"\n")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, token: str, folders: list[str]):
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.token, self.folders = token, folders

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that are silent for too long, or gone, are no news: the console is the run's."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve on the socket that the parent listens on, until the parent is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="file descriptor of the listening socket")
    parser.add_argument("--folder", action="append", default=[], help="a folder whose disk matters to this node")
    options = parser.parse_args()
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # meant for the run, whose evidence may be wanted while it ends
    server = _Server(socket.socket(fileno=options.socket), os.environ.pop(TOKEN), options.folder)
    server.serve_forever(poll_interval=5.0)


if __name__ == "__main__":
    main()
