"""Free memory of the workers at a barrier, and which workers differ from their peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from rlrun.data.messages import WorkerStatus

OUTLIER_SHARE = 0.1  # of the median of the peers
OUTLIER_BYTES = 500e6  # a smaller difference is noise of allocators


def free_memory(statuses: Sequence[WorkerStatus]) -> str:
    """Describe the free memory in one line.

    Example: "free device memory 61.2 to 63.0 GB over 8 workers; host memory 700.1 GB on train-0".
    """
    devices = [status.device_free_bytes for status in statuses if status.device_free_bytes is not None]
    hosts = {status.host: status.host_free_bytes for status in statuses}
    parts = []
    if devices:
        parts.append(f"free device memory {_gb(min(devices))} to {_gb(max(devices))} GB over {len(devices)} workers")
    parts.append("free host memory " + ", ".join(f"{_gb(free)} GB on {host}" for host, free in hosts.items()))
    return "; ".join(parts)


def outlier_workers(statuses: Sequence[WorkerStatus]) -> list[str]:
    """Return a sentence about each worker whose free device memory or used host memory differs from its role's.

    Ranks of one FSDP group do the same work. A rank that differs offloads state that the others keep, shares its
    accelerator with a leftover process, or has read more than its part.
    """
    roles: dict[str, list[WorkerStatus]] = defaultdict(list)
    for status in statuses:
        roles[status.worker.split("/")[0]].append(status)
    outliers = []
    for peers in roles.values():
        devices = [status.device_free_bytes for status in peers if status.device_free_bytes is not None]
        outliers += _outliers(peers, devices, "free device memory")
        outliers += _outliers(peers, [float(status.host_memory_bytes) for status in peers], "host memory in use")
    return outliers


def _outliers(peers: Sequence[WorkerStatus], amounts: Sequence[float], what: str) -> list[str]:
    if len(amounts) < max(2, len(peers)):
        return []
    usual = median(amounts)
    return [
        f"{status.worker} on {status.host}: {_gb(amount)} GB {what}, {_gb(usual)} GB on most of its peers"
        for status, amount in zip(peers, amounts, strict=True)
        if abs(amount - usual) > max(OUTLIER_BYTES, OUTLIER_SHARE * usual)
    ]


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f}"
