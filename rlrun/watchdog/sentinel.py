"""The sentinel of a node: a process outside Ray that returns evidence on request, also when Ray hangs or is dead.

It listens on one address, answers only requests with its token, and ends with the process that started it.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import socket
import socketserver
import sys
from typing import Any

from rlrun.watchdog.child_process import end_with_parent, ignore_run_signals
from rlrun.watchdog.node_evidence import node_evidence
from rlrun.watchdog.sentinel_process import TOKEN

MAX_REQUEST_BYTES = 1_000_000


class _Handler(socketserver.StreamRequestHandler):
    server: _Server
    timeout = 10.0  # for a whole request to arrive

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
        self.token, self.folders = token, folders

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
