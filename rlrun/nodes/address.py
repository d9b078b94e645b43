"""The address of this node in the cluster, and whether this node is the head."""

from __future__ import annotations

import socket

from rlrun.placement.inventory import Interface
from rlrun.placement.network import local_address
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.network import require_ipv4, require_ipv4_name

DEFAULT_PORT = 6379
_OUTSIDE = "192.0.2.1"  # from the range reserved for documentation, to find the default route; no host has it
_VIRTUAL = ("lo", "docker", "br-", "virbr", "veth", "cni", "flannel", "podman")  # other nodes cannot reach these


def split_address(address: str) -> tuple[str, int]:
    """Split "host:port" or "host" into (host, port). Raises RunError, also for IPv6."""
    require_ipv4(address, "cluster.address")
    host, _, port = address.rpartition(":") if ":" in address else (address, "", str(DEFAULT_PORT))
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise RunError(
            f"'{address}' is no address.",
            "cluster.address",
            address,
            remedy="Write host:port, as train-0:6379.",
        )
    return host, int(port)


def resolve(host: str) -> str:
    """Return the IPv4 address of a host name. Raises RunError."""
    require_ipv4_name(host, "cluster.address")
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise RunError(
            f"The name of the head node, '{host}', does not resolve here.",
            "cluster.address",
            host,
            cause=str(error),
            remedy="Give the head's address in numbers, or add it to /etc/hosts of this node.",
            exit_status=ExitStatus.placement,
        ) from error


def is_own(host: str, here: tuple[Interface, ...], is_head: bool | None = None) -> bool:
    """Return whether `host`, the head, resolves to an address of this machine.

    is_head: `node.is_head`; None if it is not set. A loopback address is valid only for this machine's own name, which
    Debian and Ubuntu resolve to 127.0.1.1. For another name it is a mistake in /etc/hosts, with which a worker would
    start a second cluster. Raises RunError for such a name, and if the address contradicts `is_head`.
    """
    address = resolve(host)
    is_loopback = address.startswith("127.")
    is_here = is_loopback or any(address in interface.addresses for interface in here)
    if is_here and (is_head is False or (is_loopback and is_head is None and not _is_own_name(host))):
        raise _contradicted(
            f"The head's name '{host}' resolves to {address} here, which is this machine itself.",
            host,
            f"{socket.gethostname()} is to join the head, not to start a second cluster.",
        )
    if is_head and not is_here:
        has = ", ".join(address for interface in here for address in interface.addresses)
        raise _contradicted(f"The head is to be here, and '{host}' is {address}.", host, f"This machine has {has}.")
    return is_here


def _is_own_name(host: str) -> bool:
    """Return whether `host` is this machine's name, with or without a domain, or a name of loopback."""
    own = socket.gethostname().partition(".")[0].lower()
    return host.lower().partition(".")[0] in (own, "localhost") or host.startswith("127.")


def _contradicted(message: str, host: str, cause: str) -> RunError:
    remedy = "Give the head's address in numbers, or correct /etc/hosts of this node."
    return RunError(message, "cluster.address", host, cause, remedy, exit_status=ExitStatus.placement)


def own_address(head: str | None, here: tuple[Interface, ...], wanted: str | None, is_head: bool) -> str:
    """Return the address under which other nodes reach this one. Raises RunError that lists the interfaces.

    head: host of the head node; None if it is not given. here: the interfaces of this node. wanted: the interface of
    its node group; None for any. is_head: whether this node is the head (`is_own`). The node's own host name is not
    resolved, since it is 127.0.1.1 on Debian and Ubuntu.
    """
    if wanted is not None:
        return _address_of(wanted, here)
    if head is not None:
        named = resolve(head)
        if not is_head:
            return _towards(named)
        if not named.startswith("127."):
            return named
    by_route = local_address(_OUTSIDE)
    if by_route is not None:
        return by_route
    outward = [interface for interface in here if not interface.name.startswith(_VIRTUAL)]
    if len(outward) == 1:
        return outward[0].addresses[0]
    raise _refused("It is not clear under which address other nodes reach this one.", None, here)


def _address_of(wanted: str, here: tuple[Interface, ...]) -> str:
    for interface in here:
        if interface.name == wanted:
            return interface.addresses[0]
    raise _refused(f"This node has no interface '{wanted}' with an IPv4 address.", wanted, here)


def _towards(head: str) -> str:
    address = local_address(head)
    if address is None:
        raise RunError(
            f"This node has no route to the head, {head}.",
            "cluster.address",
            head,
            remedy=f"Check `ip route get {head}` and the cable.",
            exit_status=ExitStatus.placement,
        )
    return address


def _refused(message: str, wanted: str | None, here: tuple[Interface, ...]) -> RunError:
    listed = ", ".join(f"{interface.name} ({', '.join(interface.addresses)})" for interface in here)
    return RunError(
        message,
        "placement.nodes",
        wanted,
        cause=f"{socket.gethostname()} has {listed}.",
        remedy="Set `interface` of the node's group in the placement file to the one that joins the nodes.",
        exit_status=ExitStatus.placement,
    )
