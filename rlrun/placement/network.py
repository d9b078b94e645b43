"""Choice of the network interface for the collectives of this process, on its own node."""

from __future__ import annotations

import socket

from rlrun.placement.inventory import Interface
from rlrun.placement.this_machine import interfaces
from rlrun.system.errors import ExitStatus, RunError


def local_address(peer: str) -> str | None:
    """Return this machine's source address for packets to `peer`, or None without a route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            return None
        return probe.getsockname()[0]


def interface_towards(peer: str) -> str | None:
    """Return the name of the interface that owns the route to `peer`, or None without a route."""
    address = local_address(peer)
    return next((i.name for i in interfaces() if address in i.addresses), None)


def choose_interface(node: str, peer: str, is_alone: bool, wanted: str | None) -> Interface:
    """Return the interface for the collectives of a worker on this node.

    node: the node's name, for errors. peer: the head's address; on the head the address of another node, or its own if
    the run has one node (`is_alone`). wanted: the interface of the node group, or None.
    Without a choice Gloo advertises the address of the host name, often 127.0.1.1, and peers wait for ever.
    Raises RunError that names the node and its interfaces.
    """
    here = interfaces()
    if wanted is not None:
        found = [interface for interface in here if interface.name == wanted]
        if not found:
            raise _refused(
                f"Node {node} has no interface '{wanted}' with an IPv4 address.",
                node,
                here,
                wanted,
            )
        return found[0]
    address = local_address(peer)
    found = [interface for interface in here if address in interface.addresses]
    if not found:
        raise _refused(f"No interface of node {node} has a route to {peer}.", node, here)
    if not is_alone and found[0].name == "lo":
        raise _refused(
            f"Node {node} would reach {peer} over loopback, which no other node can reach.",
            node,
            here,
        )
    return found[0]


def _refused(message: str, node: str, here: tuple[Interface, ...], wanted: str | None = None) -> RunError:
    has = ", ".join(f"{interface.name} ({', '.join(interface.addresses)})" for interface in here)
    return RunError(
        message,
        "placement.nodes",
        wanted,
        cause=f"{node} has {has or 'no interface that is up'}.",
        remedy="Correct the interface of the node's group, or remove the key: rlrun then uses the one that owns the "
        "route. Start Ray with --node-ip-address if the node has several addresses.",
        exit_status=ExitStatus.placement,
    )
