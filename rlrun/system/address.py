"""Checks that addresses of hosts are IPv4; IPv6 is refused with an error that says so."""

from __future__ import annotations

import socket

from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus


def require_ipv4(address: str, key: str) -> None:
    """Raise RunError for a numeric IPv6 address. Example: require_ipv4("[::1]:6379", "cluster.address")."""
    host = address.partition("]")[0].removeprefix("[").partition("%")[0]
    if not address.startswith("[") and address.count(":") < 2:
        return
    if not _is_ipv6(host):
        return  # no address at all, which its reader reports
    raise RunError(
        f"'{address}' is an IPv6 address, and IPv6 is not supported.",
        key,
        address,
        cause="Ray and the collectives of a run are tied to IPv4 addresses.",
        remedy="Give the IPv4 address of the node, or a name that resolves to it, as 10.0.0.1:6379.",
        exit_status=ExitStatus.placement,
    )


def require_ipv4_name(host: str, key: str) -> None:
    """Raise RunError for a name that resolves to IPv6 addresses only; a name without any address passes."""
    found = _addresses(host)
    if not found or any(not _is_ipv6(address) for address in found):
        return
    raise RunError(
        f"'{host}' resolves to {found[0]}, an IPv6 address; rlrun needs IPv4.",
        key,
        host,
        cause="No IPv4 address is known for this name here.",
        remedy="Give the node's IPv4 address in numbers, or add it to /etc/hosts of this node.",
        exit_status=ExitStatus.placement,
    )


def _addresses(host: str) -> list[str]:
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
