"""Utilization, memory and power of this host's GPUs, read from nvidia-smi with a timeout."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from rlrun.system import nvidia_smi
from rlrun.system.nvidia_smi import UnansweredError

logger = logging.getLogger(__name__)

QUERY = ("index", "name", "utilization.gpu", "memory.used", "memory.total", "power.draw")


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment; None where the driver reports "[N/A]".

    Example: GpuReading(0, "NVIDIA A100-SXM4-80GB", 87.0, 41_000_000_000, 85_899_345_920, 312.5)
    """

    index: int
    name: str
    use_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None


def read_gpus(timeout_s: float = 5.0) -> list[GpuReading]:
    """Read this host's GPUs. []: no nvidia-smi or no device. Raises UnansweredError, also after `timeout_s`."""
    return [_reading(*cells) for cells in nvidia_smi.query(QUERY, timeout_s=timeout_s) if cells[0].isdigit()]


def _reading(index: str, name: str, use: str, used: str, total: str, power: str) -> GpuReading:
    memory = nvidia_smi.num_bytes(used), nvidia_smi.num_bytes(total)
    return GpuReading(int(index), name, nvidia_smi.number(use), *memory, nvidia_smi.number(power))


class GpuSampler:
    """Reads this host's GPUs every `period_s` in a thread of its own; a host without GPUs is read once."""

    def __init__(self, period_s: float = 2.0):
        self._period_s = period_s
        self._latest: list[GpuReading] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def latest(self) -> list[GpuReading]:
        """Return the last readings; empty before the first."""
        return self._latest

    def stop(self) -> None:
        """End the thread, without waiting for a query that is running."""
        self._stopping.set()

    def _sample(self) -> None:
        while not self._stopping.is_set():
            try:
                self._latest = read_gpus()
            except UnansweredError as error:  # a busy driver may answer later
                logger.info("%s", error)
            else:
                if not self._latest:
                    return
            self._stopping.wait(self._period_s)
