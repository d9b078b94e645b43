"""Choice of the network interface for the collectives of this process, on its own node."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil

from rlrun.placement.inventory import Interface
from rlrun.placement.this_machine import interfaces
from rlrun.system.errors import ExitStatus, RunError

_HEADERS = 40  # bytes of the IPv4 and TCP headers
_SMALL = 576  # bytes that every path must support
_LARGEST = 16_384  # limit of one HTTP/2 frame: covers jumbo frames; loopback has a larger MTU and is not tried
_WAIT_S = 1.5  # the kernel sends a lost packet three more times within it
_PATIENCE_S = 4.0  # and four more times within this, for a link that delays small packets as well
_PATIENCE = 20  # times as long as a small packet takes
_ROUNDS = 3
_AT_ONCE = 12
_POLL_S = 0.002
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")  # with empty settings
_UNKNOWN_FRAME = 0xBB  # a frame type that receivers must ignore


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


@dataclass(frozen=True)
class PathMtu:
    """Example: PathMtu("ens7f1", 1500, 1400): the interface sends up to 1500 bytes, packets up to 1400 arrive."""

    interface: str
    mtu: int
    passes: int
    delay_s: float = 0.0  # that packets of full size take at least; 0: they arrive in time

    @property
    def loses_packets(self) -> bool:
        return self.passes < self.mtu

    @property
    def is_slow(self) -> bool:
        return self.delay_s > 0

    def delay(self, source: str, target: str) -> str:
        """Return the delay as a sentence."""
        return (
            f"packets of {self.mtu} bytes from {source} to {target} take {self.delay_s:.1f} s or more to be "
            "acknowledged, but are not lost: the link is slow or full in one direction"
        )

    def cause(self, source: str, target: str) -> str:
        """Return the cause as a sentence."""
        return (
            f"packets of {self.mtu} bytes from {source} to {target} get lost, {self.passes} arrive: the path's MTU is "
            f"below that of {self.interface}, and no router reports it"
        )

    def remedy(self, source: str) -> str:
        """Return a command to paste."""
        return (
            f"on {source}: ip link set dev {self.interface} mtu {self.passes}; or correct the switch, the VPN or the "
            "firewall that drops ICMP (fragmentation needed) on the way"
        )


def measure_path(address: str, port: int, wait_s: float = _WAIT_S) -> PathMtu | None:
    """Measure the path to a listening port of another host. Returns None if small packets are lost as well.

    Takes one round trip on a healthy path, else some seconds. If path MTU discovery works, the kernel sends smaller
    packets by itself, and the path counts as healthy. A large packet counts as lost only if small ones arrive much
    sooner than it would have to.
    """
    interface = _interface_towards(address)
    if interface is None:
        return None
    known = psutil.net_if_stats().get(interface)
    if known is None:  # the interface has just disappeared, for example with a pulled cable
        return None
    mtu = known.mtu
    is_there = mtu > _LARGEST or _arrives(address, port, mtu, wait_s)
    if is_there:
        return PathMtu(interface, mtu, mtu)
    if is_there is None:
        return None
    began = time.monotonic()
    if not _arrives(address, port, _SMALL, _PATIENCE_S):
        return None
    patience_s = max(wait_s, min(_PATIENCE_S, _PATIENCE * (time.monotonic() - began)))
    began = time.monotonic()
    if _arrives(address, port, mtu, patience_s):
        return PathMtu(interface, mtu, mtu, max(wait_s, time.monotonic() - began))
    passes = _largest(address, port, mtu, patience_s)
    return PathMtu(interface, mtu, passes, 0.0 if passes < mtu else patience_s)


def _largest(address: str, port: int, mtu: int, wait_s: float) -> int:
    """Return the size of the largest packets that arrive, where one of `mtu` bytes did not; `mtu` if sizes do not
    decide it."""
    # arrives, is lost
    low = _SMALL
    high = mtu
    for _ in range(_ROUNDS):
        step = max(1, (high - low) // (_AT_ONCE + 1))
        sizes = list(range(low + step, high, step))[:_AT_ONCE]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = list(pool.map(lambda size: _arrives(address, port, size, wait_s), sizes))
        arrived = [size for size, is_there in zip(sizes, found, strict=True) if is_there]
        lost = [size for size, is_there in zip(sizes, found, strict=True) if not is_there]
        low = max([low, *arrived])
        high = min([high, *lost])
        if low > high:
            return mtu
    return low


def require_path(source: str, target: str, path: PathMtu | None) -> None:
    """Raise RunError if the path loses large packets."""
    if path is None or not path.loses_packets:
        return
    cause = path.cause(source, target)
    raise RunError(
        f"The network loses large packets: {cause}.",
        cause="Connections open, and hang as soon as a message does not fit into a small packet.",
        remedy=path.remedy(source),
        exit_status=ExitStatus.doctor,
    )


def _interface_towards(address: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # sends nothing
        except OSError:
            return None
        own = probe.getsockname()[0]
    found = [name for name, known in psutil.net_if_addrs().items() if own in [one.address for one in known]]
    return found[0] if found else None


def _arrives(address: str, port: int, size: int, wait_s: float) -> bool | None:
    """Return whether the other host acknowledges a packet of `size` bytes, or None if the connection fails."""
    end = time.monotonic() + wait_s
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close sends nothing
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, size - _HEADERS)
        connection.settimeout(wait_s)
        try:
            connection.connect((address, port))
        except OSError:
            return None
        try:
            connection.sendall(_frames(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)))
            while _num_unacknowledged(connection) > 0:
                if time.monotonic() > end:
                    return False
                time.sleep(_POLL_S)
        except ConnectionResetError:
            return True  # the other program rejected the frame, so it arrived
        except OSError:
            return False
    return True


def _frames(num_bytes: int) -> bytes:
    """Return a preface and one frame of `num_bytes` in total."""
    content = num_bytes - len(_PREFACE) - 9
    return _PREFACE + content.to_bytes(3, "big") + bytes([_UNKNOWN_FRAME, 0, 0, 0, 0, 0]) + bytes(content)


def _num_unacknowledged(connection: socket.socket) -> int:
    return struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]
