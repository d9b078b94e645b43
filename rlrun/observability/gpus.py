"""Utilization, memory and power of this host's GPUs, read from nvidia-smi with a timeout."""

from __future__ import annotations

import shutil
import subprocess
import threading
from dataclasses import dataclass

QUERY = ("index", "name", "utilization.gpu", "memory.used", "memory.total", "power.draw")
MIB = 1024 * 1024


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment; None where the driver reports "[N/A]".

    Example: GpuReading(0, "NVIDIA A100-SXM4-80GB", 87.0, 41_000_000_000, 85_899_345_920, 312.5)
    """

    index: int
    name: str
    use_percent: float | None
    memory_used_bytes: int
    memory_total_bytes: int
    power_w: float | None


def read_gpus(timeout_s: float = 5.0) -> list[GpuReading]:
    """Read this host's GPUs. Returns [] without nvidia-smi, without a driver, or after `timeout_s`."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_gpus(answer.stdout) if answer.returncode == 0 else []


def parse_gpus(csv: str) -> list[GpuReading]:
    """Parse the output of the query. Lines of another form are left out."""
    readings = []
    for line in csv.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(QUERY) or not cells[0].isdigit():
            continue
        use, used, total, power = (_number(cell) for cell in cells[2:])
        memory_used_bytes, memory_total_bytes = int((used or 0) * MIB), int((total or 0) * MIB)
        readings.append(GpuReading(int(cells[0]), cells[1], use, memory_used_bytes, memory_total_bytes, power))
    return readings


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
            self._latest = read_gpus()
            if not self._latest:
                return
            self._stopping.wait(self._period_s)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
