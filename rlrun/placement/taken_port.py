"""The process that holds a TCP port of this machine."""

from __future__ import annotations

import errno
import os
import socket

import psutil


def holder_of(port: int) -> str | None:
    """Return a description of the process that listens on a port of this machine, or None if the port is free.

    Tries all addresses, as Ray and torch do. Example: "redis-server (pid 812)".
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not hold the port
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            return _listener(port) if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
    return None


def _listener(port: int) -> str:
    try:
        found = [c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.pid]
        return f"{psutil.Process(found[0]).name()} (pid {found[0]})" if found else "a process of another user"
    except psutil.Error:
        return "a process that this user may not see"
