"""Reads the members of a Ray cluster from outside, without joining it, in milliseconds.

This is the one use of a private interface of Ray. `ray.nodes()` needs a process that has joined, and a node asks before
it joins; `ray.util.state` needs Ray's dashboard.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading

from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, without stubs
from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]  # generated, without stubs
from ray.exceptions import AuthenticationError, RpcError

from rlrun.cluster import ray_address

_CONNECT_S = 1.0
_GREETING_S = 3.0
_HTTP2_SETTINGS = 4  # type of a frame, its fourth byte (RFC 9113)
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _HTTP2_SETTINGS, 0, 0, 0, 0, 0])
_ANSWER_S = 5.0  # Ray's client tries for 40 s if the head has ended since its port was probed
logger = logging.getLogger(__name__)


def joined(head: str) -> dict[str, str]:
    """Return the living nodes, name -> address. Returns {} if the head ("10.77.0.1:6379") does not listen or answer."""
    return _answer(head) or {}


def admits(head: str) -> bool | None:
    """Return whether the cluster at `head` accepts the token of this process; None if it does not answer."""
    nodes = _answer(head)
    return None if nodes == {} else nodes is not None


def _answer(head: str) -> dict[str, str] | None:
    """Return the living nodes: {} if the head does not answer, None if the token is refused or missing."""
    if is_listening(head) is not True:
        return {}
    if ray_address.is_missing():
        return None
    answer: queue.SimpleQueue[dict[str, str] | None] = queue.SimpleQueue()
    threading.Thread(target=_ask, args=(head, answer), name="membership", daemon=True).start()
    try:
        return answer.get(timeout=_ANSWER_S)
    except queue.Empty:
        return {}


def _ask(head: str, answer: queue.SimpleQueue[dict[str, str] | None]) -> None:
    try:
        nodes = GcsClient(address=head).get_all_node_info(timeout=2, state_filter=GcsNodeInfo.GcsNodeState.ALIVE)
    except AuthenticationError:
        answer.put(None)
        return
    except (RpcError, RuntimeError):  # still starting
        nodes = {}
    answer.put({node.node_name: node.node_manager_address for node in nodes.values()})


def no_head(address: str) -> str | None:
    """Return the reason why no Ray head is at `address` ("10.77.0.1:6379"); None if one may be there.

    A head is a gRPC server, which greets a client of HTTP/2 with its settings; Ray's own client would print lines for a
    minute instead.
    """
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if not host or not port.isdigit():
        return None  # such as "auto"
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as connection:
            connection.settimeout(_GREETING_S)
            connection.sendall(_HTTP2_GREETING)
            answer = connection.recv(9)
    except ConnectionRefusedError:
        return "nothing listens there"
    except TimeoutError:
        return "nothing there answers"
    except OSError as error:
        return f"it cannot be reached: {error.strerror or error}"
    is_settings = len(answer) >= 4 and answer[3] == _HTTP2_SETTINGS
    return None if is_settings else "what listens there is not Ray"


def is_listening(head: str) -> bool | None:
    """Return whether a process listens at `head`; None without an answer, or if `head` is no address."""
    host, _, port = head.rpartition(":")
    if not port.isdigit():
        return None
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
