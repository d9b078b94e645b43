"""Chooses the settings of Ray on a node: group, directories, address, sizes."""

from __future__ import annotations

import socket
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.nodes.address import DEFAULT_PORT, is_own, own_address, resolve, split_address
from rlrun.nodes.command import NodeSettings, check_shared_memory
from rlrun.nodes.folder import choose_folder
from rlrun.placement.accelerators import find_accelerators
from rlrun.placement.node_group import group_of
from rlrun.placement.request import GroupRequest, read_request
from rlrun.placement.this_machine import interfaces, this_node
from rlrun.system.local_files import folder_for_ray

_LOG_BYTES = 200_000_000  # Ray's own logs and sockets


def group_here(config: RunConfig) -> GroupRequest:
    """Return the node group of this machine."""
    return group_of(this_node(), read_request(config.placement), config.node.group)


def directories(config: RunConfig) -> list[str]:
    """Return every directory in which nodes of this group may have folders."""
    group = group_here(config)
    return [path for path in (_temp_dir(config, group), *group.spill_dirs) if Path(path).is_dir()]


def _temp_dir(config: RunConfig, group: GroupRequest) -> str:
    return group.temp_dir or folder_for_ray(config.cluster.temp_dir).path


def choose_directories(config: RunConfig, group: GroupRequest) -> tuple[str, str | None]:
    """Return the directories for Ray's sessions and for spilled objects; the second is None if it is the same."""
    key = f"placement.nodes.{group.name}"
    store = config.cluster.object_store_bytes
    check_shared_memory(store)
    temp_need = _LOG_BYTES if group.spill_dirs else _LOG_BYTES + store
    temp = choose_folder([_temp_dir(config, group)], temp_need, f"{key}.temp_dir", is_for_sockets=True)
    if not group.spill_dirs:
        return temp, None
    return temp, choose_folder(group.spill_dirs, store, f"{key}.spill_dirs", is_for_sockets=False)


def decide(config: RunConfig, group: GroupRequest, temp_dir: str, spill_dir: str | None) -> NodeSettings:
    """Return the settings of Ray on this node. Raises RunError if its address is not clear."""
    here = interfaces()
    host, port = split_address(config.cluster.address) if config.cluster.address else (None, DEFAULT_PORT)
    is_head = host is None or is_own(host, here, config.node.is_head)
    address = own_address(host, here, group.interface, is_head)
    return NodeSettings(
        name=socket.gethostname(),
        address=address,
        head=f"{address if host is None or is_head else resolve(host)}:{port}",
        is_head=is_head,
        temp_dir=temp_dir,
        spill_dir=spill_dir,
        object_store_bytes=config.cluster.object_store_bytes,
        num_accelerators=sum(not accelerator.is_hidden for accelerator in find_accelerators().devices),
        ports=config.node.ports,
        lost_after_s=config.node.lost_after_s,
    )
