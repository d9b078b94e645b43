"""Whether a TCP port of this machine can be opened, and who holds it where not."""

from __future__ import annotations

import errno
import os
import socket

import psutil


def holder_of(port: int) -> str | None:
    """Who listens on a port of this machine, in words; None: it can be opened.

    Tried on all addresses, as Ray and torch open theirs. Example: "redis-server (pid 812)".
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that end hold no port
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            return _who(port) if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
    return None


def _who(port: int) -> str:
    try:
        found = [c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.pid]
        return f"{psutil.Process(found[0]).name()} (pid {found[0]})" if found else "a process of another user"
    except psutil.Error:
        return "a process that this user may not see"
