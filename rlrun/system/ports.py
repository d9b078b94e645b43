"""TCP ports for servers that start some time after their port is chosen."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_KERNELS_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT, _TRIES = 20_000, 50  # Ray keeps 10002 to 19999 for its workers


def free_port(address: str = "") -> int:
    """Return a port of `address` (all addresses, if empty) that is free now. Raises OSError if none is.

    The port lies below the kernel's ephemeral ports, one of which another connection could take before the server
    starts. It is random, so that two jobs that start on a node at once do not choose the same.
    """
    first_of_kernel = int(_KERNELS_PORTS.read_text().split()[0]) if _KERNELS_PORTS.exists() else 32768
    candidates = range(_FIRST_PORT, first_of_kernel)
    for port in [*random.sample(candidates, min(_TRIES, len(candidates))), 0]:
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError("no TCP port is free")
