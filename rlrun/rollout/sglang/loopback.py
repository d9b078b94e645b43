"""Ports that only this machine reaches."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
