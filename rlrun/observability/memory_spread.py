"""Free memory at a barrier: what the workers have left, and which of them differ from their peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from rlrun.data.messages import WorkerStatus

ODD_SHARE = 0.1  # of what the peers have
ODD_BYTES = 500e6  # less is noise of allocators


def free_memory(statuses: Sequence[WorkerStatus]) -> str:
    """One line. Example: "free device memory 61.2 to 63.0 GB over 8 workers; host memory 700.1 GB on train-0"."""
    devices = [status.device_free_bytes for status in statuses if status.device_free_bytes is not None]
    hosts = {status.host: status.host_free_bytes for status in statuses}
    parts = []
    if devices:
        parts.append(f"free device memory {_gb(min(devices))} to {_gb(max(devices))} GB over {len(devices)} workers")
    parts.append("free host memory " + ", ".join(f"{_gb(free)} GB on {host}" for host, free in hosts.items()))
    return "; ".join(parts)


def odd_workers(statuses: Sequence[WorkerStatus]) -> list[str]:
    """Workers whose free device memory, or own host memory, is not like that of the others of their role.

    Ranks of one FSDP group do the same work: one that differs offloads what the others keep, shares its
    accelerator with a process that was left over, or has read more than its part.
    """
    roles: dict[str, list[WorkerStatus]] = defaultdict(list)
    for status in statuses:
        roles[status.worker.split("/")[0]].append(status)
    told = []
    for peers in roles.values():
        devices = [status.device_free_bytes for status in peers if status.device_free_bytes is not None]
        told += _odd(peers, devices, "free device memory")
        told += _odd(peers, [float(status.host_memory_bytes) for status in peers], "host memory in use")
    return told


def _odd(peers: Sequence[WorkerStatus], amounts: Sequence[float], what: str) -> list[str]:
    if len(amounts) < max(2, len(peers)):
        return []
    usual = median(amounts)
    return [
        f"{status.worker} on {status.host}: {_gb(amount)} GB {what}, {_gb(usual)} GB on most of its peers"
        for status, amount in zip(peers, amounts, strict=True)
        if abs(amount - usual) > max(ODD_BYTES, ODD_SHARE * usual)
    ]


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f}"
