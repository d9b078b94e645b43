"""Settings of Ray on a node: its address and role, its directories, its node group."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.cluster.node_process import NodeSettings, check_shared_memory
from rlrun.config.schema import RunConfig
from rlrun.placement.inventory import Interface, NodeInfo
from rlrun.placement.network import local_address
from rlrun.placement.plan import GroupRequest, Request, read_request, refused
from rlrun.placement.planner import fits
from rlrun.placement.this_machine import find_accelerators, interfaces, this_node
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import folder_for_ray
from rlrun.system.network import require_ipv4, require_ipv4_name

DEFAULT_PORT = 6379
_ROUTE_PROBE = "192.0.2.1"  # reserved for documentation: finds the default route, belongs to no host
_VIRTUAL_INTERFACES = (
    "lo",
    "docker",
    "br-",
    "virbr",
    "veth",
    "cni",
    "flannel",
    "podman",
)  # other nodes cannot reach these
NODE_FOLDER_PREFIX = "rlrun-node-"
_RAY_MAX_DISK_USAGE = 0.95  # Ray writes nothing to a disk that is fuller
_MAX_SOCKET_PATH = 107  # bytes in the path of a Unix socket
_LONGEST_SOCKET_PATH = "/rlrun-node-12345678/r/session_2026-11-21_12-17-36_644775_1234567/sockets/plasma_store"
_MEGABYTE = 10**6
_LOG_BYTES = 200_000_000  # Ray's own logs and sockets


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


def is_this_machine(host: str, here: tuple[Interface, ...], is_head: bool | None = None) -> bool:
    """Return whether `host`, the head, resolves to an address of this machine.

    is_head: `node.is_head`; None if it is not set. A loopback address is valid only for this machine's own name, which
    Debian and Ubuntu resolve to 127.0.1.1. For another name it is a mistake in /etc/hosts, with which a worker would
    start a second cluster. Raises RunError for such a name, and if the address contradicts `is_head`.
    """
    address = resolve(host)
    is_loopback = address.startswith("127.")
    is_here = is_loopback or any(address in interface.addresses for interface in here)
    if is_here and (is_head is False or (is_loopback and is_head is None and not _is_own_name(host))):
        raise _head_name_error(
            f"The head's name '{host}' resolves to {address} here, which is this machine itself.",
            host,
            f"{socket.gethostname()} is to join the head, not to start a second cluster.",
        )
    if is_head and not is_here:
        has = ", ".join(address for interface in here for address in interface.addresses)
        raise _head_name_error(f"The head is to be here, and '{host}' is {address}.", host, f"This machine has {has}.")
    return is_here


def _is_own_name(host: str) -> bool:
    """Return whether `host` is this machine's name, with or without a domain, or a name of loopback."""
    host_name = socket.gethostname().partition(".")[0].lower()
    return host.lower().partition(".")[0] in (host_name, "localhost") or host.startswith("127.")


def _head_name_error(message: str, host: str, cause: str) -> RunError:
    remedy = "Give the head's address in numbers, or correct /etc/hosts of this node."
    return RunError(message, "cluster.address", host, cause, remedy, exit_status=ExitStatus.placement)


def own_address(head: str | None, here: tuple[Interface, ...], wanted: str | None, is_head: bool) -> str:
    """Return the address under which other nodes reach this one. Raises RunError that lists the interfaces.

    head: host of the head node; None if it is not given. here: the interfaces of this node. wanted: the interface of
    its node group; None for any. is_head: whether this node is the head. The node's own host name is not
    resolved, since it is 127.0.1.1 on Debian and Ubuntu.
    """
    if wanted is not None:
        return _address_of(wanted, here)
    if head is not None:
        named = resolve(head)
        if not is_head:
            return _address_towards(named)
        if not named.startswith("127."):
            return named
    by_route = local_address(_ROUTE_PROBE)
    if by_route is not None:
        return by_route
    outward = [interface for interface in here if not interface.name.startswith(_VIRTUAL_INTERFACES)]
    if len(outward) == 1:
        return outward[0].addresses[0]
    raise _interface_error("It is not clear under which address other nodes reach this one.", None, here)


def _address_of(wanted: str, here: tuple[Interface, ...]) -> str:
    for interface in here:
        if interface.name == wanted:
            return interface.addresses[0]
    raise _interface_error(f"This node has no interface '{wanted}' with an IPv4 address.", wanted, here)


def _address_towards(head: str) -> str:
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


def _interface_error(message: str, wanted: str | None, here: tuple[Interface, ...]) -> RunError:
    listed = ", ".join(f"{interface.name} ({', '.join(interface.addresses)})" for interface in here)
    return RunError(
        message,
        "placement.nodes",
        wanted,
        cause=f"{socket.gethostname()} has {listed}.",
        remedy="Set `interface` of the node's group in the placement file to the one that joins the nodes.",
        exit_status=ExitStatus.placement,
    )


@dataclass(frozen=True)
class FreeSpace:
    """Space on the disk of `path` that Ray may use. Example: FreeSpace("/data/spill", 120_000_000_000)."""

    path: str
    usable_bytes: int  # until the disk is 95 % full; negative if it is fuller


def free_space(path: str) -> FreeSpace:
    """Measure the free space of `path`, creating it if it is missing. Raises OSError."""
    Path(path).mkdir(parents=True, exist_ok=True)
    disk = shutil.disk_usage(path)
    return FreeSpace(path, min(disk.free, int(_RAY_MAX_DISK_USAGE * disk.total) - disk.used))


def choose_folder(paths: Sequence[str], need_bytes: int, key: str, is_for_sockets: bool) -> str:
    """Return the path with most free space among those with enough space and, for sockets, a short enough name.

    key: the configuration key of the paths. Raises RunError with the fault of every path.
    """
    fit = []
    faults = []
    for path in paths:
        excess = len((path + _LONGEST_SOCKET_PATH).encode()) - _MAX_SOCKET_PATH
        try:
            space = free_space(path)
        except OSError as error:
            faults.append(f"{path}: {error.strerror}")
            continue
        if is_for_sockets and excess > 0:
            faults.append(f"{path}: {excess} bytes too long for Ray's Unix sockets")
        elif space.usable_bytes < need_bytes:
            usable = max(0, space.usable_bytes) // _MEGABYTE
            need = need_bytes // _MEGABYTE
            faults.append(f"{path}: {usable} MB until the disk is 95 % full, {need} MB needed")
        elif not os.access(path, os.W_OK):
            faults.append(f"{path}: not writable")
        else:
            fit.append(space)
    if fit:
        return max(fit, key=lambda space: space.usable_bytes).path
    raise RunError(
        f"No folder of {os.uname().nodename} has enough space for Ray.",
        key,
        list(paths),
        cause="\n".join(faults),
        remedy="Free the disk, or name a folder on another one (temp_dir, spill_dirs of the node's group).",
        exit_status=ExitStatus.placement,
    )


def choose_group(node: NodeInfo, request: Request, wanted: str | None) -> GroupRequest:
    """Return the group `wanted`, else the first group that the node fits. Raises RunError if there is none.

    The later plan may put the node into another group of the same kind; then only the directories of that group
    differ.
    """
    names = [group.name for group in request.groups]
    if wanted is not None:
        if wanted not in names:
            raise refused(
                f"There is no node group '{wanted}'.",
                "node.group",
                wanted,
                remedy=f"Groups: {', '.join(names)}.",
            )
        return request.groups[names.index(wanted)]
    for group in request.groups:
        if fits(node, group):
            return group
    raise refused(
        f"Node {node} fits none of the groups {', '.join(names)}.",
        "placement.nodes",
        cause="Groups choose their nodes by `accelerator` and `names`.",
        remedy="Correct the groups, or name the group of this node: node.group=NAME.",
    )


def num_expected(request: Request) -> int:
    """Return the number of nodes that the groups expect; a group without a count expects at least one."""
    return sum(group.count or max(1, len(group.names)) for group in request.groups)


def this_group(config: RunConfig) -> GroupRequest:
    """Return the node group of this machine."""
    return choose_group(this_node(), read_request(config.placement), config.node.group)


def group_directories(config: RunConfig) -> list[str]:
    """Return the directories in which nodes of this group may have folders."""
    group = this_group(config)
    return [path for path in (_temp_dir(config, group), *group.spill_dirs) if Path(path).is_dir()]


def _temp_dir(config: RunConfig, group: GroupRequest) -> str:
    return group.temp_dir or folder_for_ray(config.cluster.temp_dir).path


def choose_directories(config: RunConfig, group: GroupRequest) -> tuple[str, str | None]:
    """Return the directories for Ray's sessions and for spilled objects (None: the same directory)."""
    key = f"placement.nodes.{group.name}"
    store = config.cluster.object_store_bytes
    check_shared_memory(store)
    temp_need = _LOG_BYTES if group.spill_dirs else _LOG_BYTES + store
    temp = choose_folder([_temp_dir(config, group)], temp_need, f"{key}.temp_dir", is_for_sockets=True)
    if not group.spill_dirs:
        return temp, None
    return temp, choose_folder(group.spill_dirs, store, f"{key}.spill_dirs", is_for_sockets=False)


def choose_settings(config: RunConfig, group: GroupRequest, temp_dir: str, spill_dir: str | None) -> NodeSettings:
    """Return the settings of Ray on this node. Raises RunError if its address is not clear."""
    here = interfaces()
    host, port = split_address(config.cluster.address) if config.cluster.address else (None, DEFAULT_PORT)
    is_head = host is None or is_this_machine(host, here, config.node.is_head)
    address = own_address(host, here, group.interface, is_head)
    return NodeSettings(
        name=socket.gethostname(),
        address=address,
        head=f"{address if host is None or is_head else resolve(host)}:{port}",
        is_head=is_head,
        temp_dir=temp_dir,
        spill_dir=spill_dir,
        object_store_bytes=config.cluster.object_store_bytes,
        num_accelerators=find_accelerators().num_visible,
        ports=config.node.ports,
        lost_after_s=config.node.lost_after_s,
    )
