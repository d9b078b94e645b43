"""Network addresses and TCP ports of this machine."""

from __future__ import annotations

import errno
import os
import random
import socket
from pathlib import Path

import psutil

from rlrun.system.errors import ExitStatus, RunError

SENTINEL = "RLRUN_SENTINEL"  # variable with the address of this node's sentinel: host:port/token
LOOPBACK = "127.0.0.1"
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Ray keeps 10002 to 19999 for its workers
_FIRST_PORT = 20_000
_TRIES = 50


def require_ipv4(address: str, key: str) -> None:
    """Raise RunError for a numeric IPv6 address. Example: require_ipv4("[::1]:6379", "cluster.address")."""
    host = address.partition("]")[0].removeprefix("[").partition("%")[0]
    if not address.startswith("[") and address.count(":") < 2:
        return
    if not _is_ipv6(host):
        return  # no valid address: the code that reads it reports that
    raise RunError(
        f"'{address}' is an IPv6 address, and IPv6 is not supported.",
        key,
        address,
        cause="Ray and the collectives of a run are tied to IPv4 addresses.",
        remedy="Give the IPv4 address of the node, or a name that resolves to it, as 10.0.0.1:6379.",
        exit_status=ExitStatus.placement,
    )


def require_ipv4_name(host: str, key: str) -> None:
    """Raise RunError for a name that resolves to IPv6 addresses only; a name without any address is accepted."""
    addresses = _resolved_addresses(host)
    if not addresses or any(not _is_ipv6(address) for address in addresses):
        return
    raise RunError(
        f"'{host}' resolves to {addresses[0]}, an IPv6 address; rlrun needs IPv4.",
        key,
        host,
        cause="No IPv4 address is known for this name here.",
        remedy="Give the node's IPv4 address in numbers, or add it to /etc/hosts of this node.",
        exit_status=ExitStatus.placement,
    )


def _resolved_addresses(host: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def _is_ipv6(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, text.partition("%")[0])
    except OSError:
        return False
    return True


def free_port(address: str = "") -> int:
    """Return a port of `address` (all addresses, if empty) that is free now. Raises OSError if none is.

    The port lies below the kernel's ephemeral ports: an outgoing connection could take one of those before the server
    starts. It is random, so that two jobs that start on a node at the same time choose different ports.
    """
    first_of_kernel = int(_EPHEMERAL_PORTS.read_text().split()[0]) if _EPHEMERAL_PORTS.exists() else 32768
    candidates = range(_FIRST_PORT, first_of_kernel)
    for port in [*random.sample(candidates, min(_TRIES, len(candidates))), 0]:
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError("no TCP port is free")


def port_holder(port: int) -> str | None:
    """Return a description of the process that listens on a port of this machine, or None if the port is free.

    Tries all addresses, as Ray and torch do. Example: "redis-server (pid 812)".
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not hold the port
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            return _listening_process(port) if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
    return None


def _listening_process(port: int) -> str:
    try:
        pids = [c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.pid]
        return f"{psutil.Process(pids[0]).name()} (pid {pids[0]})" if pids else "a process of another user"
    except psutil.Error:
        return "a process that this user may not see"
