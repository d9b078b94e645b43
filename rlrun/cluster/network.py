"""Which network interface the collectives of this process use, looked up on its own node."""

from __future__ import annotations

import psutil


def interface_environment(address: str, interface: str | None) -> dict[str, str]:
    """Variables that tie Gloo and NCCL to `interface`, or to the one that owns `address`.

    Without them Gloo advertises what the host name resolves to, often 127.0.1.1, and peers wait for ever.
    Raises RuntimeError listing the addresses of this node when none owns it.
    """
    if interface is not None:
        return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    owners = {a.address: name for name, addresses in psutil.net_if_addrs().items() for a in addresses}
    if address not in owners:
        raise RuntimeError(f"no network interface of this node owns {address}; it has {sorted(owners)}")
    return {"GLOO_SOCKET_IFNAME": owners[address], "NCCL_SOCKET_IFNAME": owners[address]}
