"""Live view of a run: header, progress bars, GPUs of this host, table of workers."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rlrun.config.schema import RunConfig
from rlrun.observability.step_line import duration, memory, quantity
from rlrun.observability.timeline import ROLE_ORDER, is_work
from rlrun.system import nvidia_smi
from rlrun.system.errors import escape_control
from rlrun.system.nvidia_smi import UnansweredError
from rlrun.system.status import WorkerStatus

logger = logging.getLogger(__name__)

GPU_QUERY = ("index", "name", "utilization.gpu", "memory.used", "memory.total", "power.draw")
STARTUP_PHASES = ("demos", "sft")  # phases before the first step, whose bars are removed at their end
RATE_WINDOW_S = 10.0
ETA_STEPS = 10  # last steps from which the remaining time is estimated
COLUMNS = ("worker", "host", "on", "now", "for", "expected", "progress", "memory")
MIN_EXPECTED_WIDTH = 110  # columns of a terminal; a narrower one shows no `expected`
LATE_S = 10.0  # an older phase is shown in colour


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
    return [_parse_reading(*cells) for cells in nvidia_smi.query(GPU_QUERY, timeout_s=timeout_s) if cells[0].isdigit()]


def _parse_reading(index: str, name: str, use: str, used: str, total: str, power: str) -> GpuReading:
    memory = nvidia_smi.parse_mebibytes(used), nvidia_smi.parse_mebibytes(total)
    return GpuReading(int(index), name, nvidia_smi.parse_number(use), *memory, nvidia_smi.parse_number(power))


class GpuSampler:
    """Thread that reads this host's GPUs every `period_s`; a host without GPUs is read once."""

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


@dataclass
class _Bar:
    done: int
    total: int
    started_s: float
    updated_s: float
    is_fresh: bool = True  # progress since the end of the last step


@dataclass
class _WorkerState:
    status: WorkerStatus
    expected: str = ""  # how long its phase may take
    samples: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)  # of the last RATE_WINDOW_S


class Dashboard:
    """State of the live view; the caller holds a lock around every call."""

    def __init__(self, config: RunConfig, run_dir: Path):
        self._config = config
        self._run_dir = run_dir
        self._started_s = time.monotonic()
        self._step = 0
        self._trained_s: float | None = None  # time of all training steps, over all attempts; None: not known yet
        self._step_ends: deque[float] = deque(maxlen=ETA_STEPS + 1)
        self._bars: dict[str, _Bar] = {}
        self._workers: dict[str, _WorkerState] = {}
        self._gpus: dict[str, list[GpuReading]] = {}

    def set_workers(self, statuses: list[WorkerStatus], expectations: Mapping[str, str] | None = None) -> None:
        """Replace the table of workers with `statuses`. expectations: text by worker."""
        now = time.monotonic()
        fresh: dict[str, _WorkerState] = {}
        for status in statuses:
            worker = self._workers.get(status.worker, _WorkerState(status))
            counters = {escape_control(name): value for name, value in status.counters.items()}
            worker.status = replace(
                status, host=escape_control(status.host), phase=escape_control(status.phase), counters=counters
            )
            worker.expected = (expectations or {}).get(status.worker, "")
            worker.samples.append((now, counters))
            while len(worker.samples) > 2 and now - worker.samples[0][0] > RATE_WINDOW_S:
                worker.samples.popleft()
            fresh[status.worker] = worker
        self._workers = dict(sorted(fresh.items(), key=lambda item: _sort_key(item[0])))

    def set_gpus(self, host: str | None, readings: list[GpuReading]) -> None:
        """Set the GPUs of a host; None is this host."""
        self._gpus[host or socket.gethostname()] = readings

    def set_progress(self, phase: str, done: int, total: int) -> float:
        """Set the bar of a phase. Returns the seconds since the phase began."""
        now = time.monotonic()
        bar = self._bars.get(phase)
        if bar is None or done < bar.done or not bar.is_fresh:
            bar = self._bars[phase] = _Bar(done, total, now, now)
        bar.done = done
        bar.total = total
        bar.updated_s = now
        if phase in STARTUP_PHASES and done >= total:
            del self._bars[phase]
        return now - bar.started_s

    def set_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """End a step: reset the bars of its phases, and remove those of older phases."""
        now = time.monotonic()
        if not self._step_ends:
            self._step_ends.append(now - metrics.get("step_s", now - self._started_s))
        self._step = step
        self._trained_s = metrics.get("elapsed_s", self._trained_s)
        self._step_ends.append(now)
        fresh = {phase: bar for phase, bar in self._bars.items() if bar.is_fresh}
        self._bars = {phase: _Bar(0, bar.total, now, now, is_fresh=False) for phase, bar in fresh.items()}

    def picture(self, size: ConsoleDimensions) -> RenderableType:
        """Return the live view, at most `size.height` lines high."""
        bars = self._bar_lines(size.width)
        gpus = self._gpu_lines()
        room = size.height - len(bars) - len(gpus) - 5  # rule, header, table head, "more", margin
        parts: list[RenderableType] = [Rule(style="dim"), self._header(), *bars, *gpus]
        if self._workers:
            parts += self._worker_table(max(1, room), size.width)
        return Group(*parts)

    def _header(self) -> Text:
        elapsed_s = time.monotonic() - self._started_s
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f" {self._config.name}", "bold")
        text.append(f"  step {self._step}/{self._config.num_steps}", "bold cyan")
        text.append(f"  elapsed {duration(elapsed_s)}  left {self._left()}")
        text.append(f"  {self._run_dir}", "dim")
        return text

    def _left(self) -> str:
        """Describe the remaining time: the smaller of the estimate by the last steps and the time limit.

        The limit counts the time of training steps; of the present step, at most that of the last ones.
        """
        if len(self._step_ends) < 2:
            return "known after the first step"
        pace_s = (self._step_ends[-1] - self._step_ends[0]) / (len(self._step_ends) - 1)
        left_s = pace_s * (self._config.num_steps - self._step)
        if self._config.max_minutes is not None and self._trained_s is not None:
            left_s = min(left_s, 60 * self._config.max_minutes - self._trained_s)
        running_s = time.monotonic() - self._step_ends[-1]
        return duration(max(0.0, left_s - min(running_s, pace_s)))

    def _bar_lines(self, width: int) -> list[RenderableType]:
        lines: list[RenderableType] = []
        for phase, bar in self._bars.items():
            row = Table.grid(padding=(0, 1))
            row.add_column(width=12)
            row.add_column(width=max(10, min(44, width - 36)))
            row.add_column()
            is_full = bar.done >= bar.total
            elapsed_s = (bar.updated_s if is_full else time.monotonic()) - bar.started_s
            count = f"{bar.done}/{bar.total}  {duration(elapsed_s)}" if bar.done else f"-/{bar.total}"
            row.add_row(
                Text(f" {phase}", "" if bar.done else "dim"),
                ProgressBar(total=max(1, bar.total), completed=min(bar.done, bar.total), width=None),
                Text(count, "dim" if is_full or not bar.done else "", no_wrap=True),
            )
            lines.append(row)
        return lines

    def _gpu_lines(self) -> list[RenderableType]:
        lines: list[RenderableType] = []
        for host, readings in self._gpus.items():
            for gpu in readings:
                use = "use n/a" if gpu.use_percent is None else f"use {gpu.use_percent:3.0f} %"
                power = "" if gpu.power_w is None else f"  {gpu.power_w:.0f} W"
                known = (gpu.memory_used_bytes, gpu.memory_total_bytes)
                used = " of ".join("n/a" if num_bytes is None else memory(num_bytes) for num_bytes in known)
                text = f" {host} gpu {gpu.index}  {gpu.name}  {use}  {used}{power}"
                lines.append(Text(text, "magenta", no_wrap=True, overflow="ellipsis"))
        return lines

    def _worker_table(self, room: int, width: int) -> list[RenderableType]:
        """Return a table of as many workers as fit; if not all do, those longest in their phase."""
        shown = list(self._workers.values())
        hidden = len(shown) - room
        if hidden > 0:
            longest = sorted(shown, key=lambda worker: -worker.status.phase_age_s)[:room]
            shown = [worker for worker in shown if worker in longest]
        columns = [name for name in COLUMNS if name != "expected" or width >= MIN_EXPECTED_WIDTH]
        rows = [_worker_cells(worker) for worker in shown]
        table = Table(box=None, padding=(0, 1), header_style="dim")
        widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
        others = sum(widths.values()) - widths["progress"] + 2 * len(columns)
        widths["progress"] = max(len("progress"), min(widths["progress"], width - others))  # takes what is left
        for name in columns:
            justify: Literal["left", "right"] = "right" if name == "for" else "left"
            table.add_column(name, width=widths[name], no_wrap=True, overflow="ellipsis", justify=justify)
        for row in rows:
            table.add_row(*(row[name] for name in columns))
        more = Text(f"   and {hidden} more workers", "dim")
        return [table, more] if hidden > 0 else [table]


def _worker_cells(worker: _WorkerState) -> dict[str, Text | str]:
    """Return the cells of a worker, by column."""
    status = worker.status
    is_late = status.phase_age_s > LATE_S and status.phase != "idle"
    style = "yellow" if is_late else "green" if is_work(status.phase) else "dim"
    used = memory(status.host_memory_bytes)
    if status.device_memory_bytes:
        used += f" + {memory(status.device_memory_bytes)}"
    return {
        "worker": Text(status.worker, "bold"),
        "host": status.host,
        "on": status.accelerator,
        "now": Text(status.phase, style),
        "for": Text(duration(status.phase_age_s) if status.phase != "idle" else "", style),
        "expected": Text(worker.expected, "dim"),
        "progress": _progress(worker),
        "memory": used,
    }


def _progress(worker: _WorkerState) -> str:
    """Describe counters with their rate over the last seconds. Example: env_steps 5120 (412/s)."""
    (first_s, before) = worker.samples[0]
    (last_s, after) = worker.samples[-1]
    parts = []
    for name, value in after.items():
        rate = (value - before.get(name, 0)) / (last_s - first_s) if last_s > first_s else 0.0
        text = memory if name.endswith("_bytes") else quantity
        label = name.removesuffix("_bytes")
        parts.append(f"{label} {text(value)}" + (f" ({text(rate)}/s)" if rate > 0 else ""))
    return "  ".join(parts)


def _sort_key(worker: str) -> tuple[int, str, int]:
    role, _, rank = worker.partition("/")
    place = ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER)
    return place, role, int(rank) if rank.isdigit() else 0
