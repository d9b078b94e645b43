"""The state of a worker as it reports it: its work, its waits and its memory."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Span:
    """worker -> driver: one closed interval of work, for the timeline. Times are those of `steady_time`."""

    name: str
    start_s: float
    end_s: float
    detail: str = ""
    step: int | None = None  # training step that it belongs to, from 1; None: to none


@dataclass(frozen=True)
class OpenWait:
    """worker -> watchdog: a wait that has not ended.

    Example: OpenWait("actions", ("rollout/0",), 3.2, 600.0)
    """

    what: str
    on: tuple[str, ...]  # workers that have not done their part yet
    age_s: float
    budget_s: float  # after which the waiting process itself gives up


@dataclass(frozen=True)
class WorkerStatus:
    """worker -> driver: current state of a worker.

    Example: WorkerStatus("env/0", "lab-node", 4711, "simulate", 3.2, {"env_steps": 5120}, 182_000_000, 0.0)
    """

    worker: str  # "role/rank"
    host: str
    pid: int
    phase: str  # name of the innermost open span, or "idle"
    phase_age_s: float
    counters: dict[str, int] = field(default_factory=dict)
    host_memory_bytes: int = 0  # private memory, with its child processes
    device_memory_bytes: float = 0.0  # on its accelerator; 0 without one
    accelerator: str = "cpu"  # "cpu", or "gpu N" with N as nvidia-smi of that host counts
    host_free_bytes: int = 0  # of its node
    device_free_bytes: float | None = None  # of its accelerator; None where it uses none
    waits: tuple[OpenWait, ...] = ()
    silence_s: float = 0.0  # since a counter, a span or a wait last moved
    silences: dict[str, tuple[int, float]] = field(
        default_factory=dict
    )  # phase -> number and seconds of its last sample, see observability/telemetry
    is_first: bool = False  # this process is in its phase for the first time
    load: float = 0.0  # runnable processes on its host, per core, mean of a minute
    failure: str = ""  # of a background thread, with its traceback
    notices: tuple[str, ...] = ()  # for the person who started the run, which goes on
    sentinel: str = ""  # host:port/token of the sentinel of its node; "" where there is none
