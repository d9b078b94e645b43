"""Who belongs to a Ray cluster, asked from outside it: without joining, in milliseconds."""

from __future__ import annotations

import socket

from ray._raylet import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.exceptions import RpcError

_CONNECT_S = 1.0


def joined(head: str) -> dict[str, str]:
    """Living nodes of the cluster, name -> address; empty as long as nobody listens at `head` ("10.77.0.1:6379")."""
    if knock(head) is not True:
        return {}
    try:
        nodes = GcsClient(address=head).get_all_node_info(timeout=2, state_filter=GcsNodeInfo.GcsNodeState.ALIVE)
    except (RpcError, RuntimeError):  # still starting
        return {}
    return {node.node_name: node.node_manager_address for node in nodes.values()}


def knock(head: str) -> bool | None:
    """Whether somebody listens at `head`; None: no answer, which tells nothing about the head."""
    host, _, port = head.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
