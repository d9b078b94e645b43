"""Timeline of all workers as a trace for Perfetto and chrome://tracing, sums of its spans, and profiles of steps."""

from __future__ import annotations

import cProfile
import io
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pstats import Stats
from typing import Any

from rlrun.config.schema import LoggingConfig
from rlrun.data.messages import Span
from rlrun.observability.run_files import PROFILE, log_name
from rlrun.system.local_files import parse_json

ROLE_ORDER = ("driver", "env", "rollout", "actor")
WAIT_PREFIX = "wait"  # of spans that are not work
REQUEST_INTERVAL_S = 1.0


def is_work(phase: str) -> bool:
    """Return False for "wait…" and "idle"."""
    return not phase.startswith(WAIT_PREFIX) and phase != "idle"


class TimelineWriter:
    """Writer of a JSON array of trace events, with one process row per worker.

    `close` writes the closing bracket; Perfetto also opens the file of a killed run without it. A resumed run
    continues the array.
    """

    def __init__(self, path: Path):
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._pids: dict[str, int] = {}
        events = _prepare_append(path)
        for event in events:
            if event["ph"] == "M" and event["name"] == "process_name":
                self._pids[event["args"]["name"]] = event["pid"]
        self._file = path.open("a", encoding="utf-8")
        self._is_empty = not events
        if path.stat().st_size == 0:
            self._file.write("[")

    def add(self, worker: str, spans: Iterable[Span]) -> None:
        """Append closed spans, as "collect 57" in training step 57. Nested spans of a worker are shown nested."""
        for span in spans:
            name = span.name if span.step is None else f"{span.name} {span.step}"
            event = _event(name, "X", self._pid(worker), span.start_s) | {"cat": span.name}
            event["dur"] = max(1, round(1e6 * (span.end_s - span.start_s)))
            if span.detail:
                event["args"] = {"detail": span.detail}
            self._write(event)
        self._file.flush()

    def close(self) -> None:
        """End the array. Safe to call twice."""
        if not self._file.closed:
            self._file.write("\n]\n")
            self._file.close()

    def _pid(self, worker: str) -> int:
        if worker not in self._pids:
            pid = self._pids[worker] = len(self._pids) + 1
            for name, args in (
                ("process_name", {"name": worker}),
                ("process_sort_index", {"sort_index": _sort_index(worker)}),
            ):
                self._write(_event(name, "M", pid, 0.0) | {"args": args})
        return self._pids[worker]

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(("\n" if self._is_empty else ",\n") + json.dumps(event))
        self._is_empty = False


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a timeline, which may be incomplete."""
    events = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            events.append(parse_json(line.rstrip(",")))
        except ValueError:
            continue  # a bracket, or the incomplete last line
    return [event for event in events if isinstance(event, dict)]


def seconds_by_phase(path: Path) -> dict[str, dict[str, float]]:
    """Return worker -> phase -> seconds. The time of a span excludes spans nested in it, so that phases add up.

    Time that is covered by spans of other workers only is the phase "idle": the phases of every worker add up to the
    same total. Example: {"env/0": {"simulate": 41.2, "wait for actions": 12.0, "idle": 3.1}}
    """
    names: dict[int, str] = {}
    spans: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for event in read_events(path):
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            spans[event["pid"]].append(
                (event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6, event.get("cat", event["name"]))
            )
    run_s = _covered_s(span for found in spans.values() for span in found)
    workers = sorted((pid for pid in names if spans[pid]), key=lambda pid: (_sort_index(names[pid]), names[pid]))
    seconds = {names[pid]: own_seconds(spans[pid]) for pid in workers}
    return {worker: phases | {"idle": max(0.0, run_s - sum(phases.values()))} for worker, phases in seconds.items()}


def busy_shares(spans: Mapping[str, Iterable[Span]], start_s: float, end_s: float) -> dict[str, float]:
    """Return the share of start..end that each role's workers worked (waits excluded), as metrics `busy_<role>`.

    The driver is left out, since it waits for the others. `busy_resets` is the part of env workers that reset.
    Example: busy_shares({"env/0": …, "env/1": …}, t0, t1) is {"busy_env": 0.61, "busy_resets": 0.04}
    """
    shares: dict[str, list[float]] = defaultdict(list)
    for worker, closed in spans.items():
        role = worker.split("/")[0]
        if role == ROLE_ORDER[0]:
            continue
        inside = [(max(s.start_s, start_s), min(s.end_s, end_s), s.name) for s in closed]
        seconds = own_seconds([span for span in inside if span[1] > span[0]])
        busy_s = sum(value for phase, value in seconds.items() if is_work(phase))
        shares[f"busy_{role}"].append(busy_s / max(1e-9, end_s - start_s))
        if role == "env":
            shares["busy_resets"].append(seconds.get("reset", 0.0) / max(1e-9, end_s - start_s))
    return {name: sum(values) / len(values) for name, values in shares.items()}


class BusyShares:
    """Busy shares of steps. `spans` requests from all workers the spans that they closed since the last call.

    A request takes computing time on the workers' nodes, too much for steps of some milliseconds. Workers are therefore
    asked at most once a second, for all steps of that time; the steps in between get the last shares.
    """

    def __init__(self, spans: Callable[[], Mapping[str, Iterable[Span]]]):
        self._spans = spans
        self._since_s: float | None = None  # start of the first step for which the workers were not asked yet
        self._asked_s = float("-inf")
        self._shares: dict[str, float] = {}

    def of_step(self, start_s: float, end_s: float) -> dict[str, float]:
        """Return the shares of the step from start_s to end_s, like `busy_shares`."""
        self._since_s = start_s if self._since_s is None else self._since_s
        if abs(end_s - self._asked_s) >= REQUEST_INTERVAL_S:  # a clock may be set back
            self._shares = busy_shares(self._spans(), self._since_s, end_s)
            self._since_s, self._asked_s = None, end_s
        return self._shares


def own_seconds(spans: Iterable[tuple[float, float, str]]) -> dict[str, float]:
    """Return phase -> seconds of properly nested (start, end, phase), each without the spans nested in it."""
    seconds: dict[str, float] = defaultdict(float)
    enclosing: list[tuple[float, str]] = []  # (end, phase) of the open spans
    for start, end, phase in sorted(spans, key=lambda span: (span[0], -span[1])):
        while enclosing and enclosing[-1][0] <= start:
            enclosing.pop()
        if enclosing:
            seconds[enclosing[-1][1]] -= min(end, enclosing[-1][0]) - start
        seconds[phase] += end - start
        enclosing.append((end, phase))
    return dict(seconds)


def _covered_s(spans: Iterable[tuple[float, float, str]]) -> float:
    """Return the length of the union of (start, end, phase)."""
    covered_s, reached_s = 0.0, float("-inf")
    for start, end, _ in sorted(spans):
        covered_s += max(0.0, end - max(start, reached_s))
        reached_s = max(reached_s, end)
    return covered_s


def _event(name: str, kind: str, pid: int, time_s: float) -> dict[str, Any]:
    return {"name": name, "ph": kind, "pid": pid, "tid": pid, "ts": round(1e6 * time_s)}


def _sort_index(worker: str) -> int:
    role, _, rank = worker.partition("/")
    order = ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER)
    return 10_000 * order + (int(rank) if rank.isdigit() else 0)


def _prepare_append(path: Path) -> list[dict[str, Any]]:
    """Return the events of the run before it was resumed, and rewrite the file so that more can be appended."""
    if not path.exists():
        return []
    events = read_events(path)
    whole = "[" + ",".join("\n" + json.dumps(event) for event in events)
    path.write_text(whole if events else "", encoding="utf-8")
    return events


logger = logging.getLogger(__name__)
_PROFILE_TABLE_ROWS = 20
_CALL_TABLE_ROWS = 40


@contextmanager
def profiled(run_dir: Path, config: LoggingConfig, step: int, worker: str) -> Iterator[None]:
    """Profile the code inside if `step` is one of `logging.profile_steps`; else do nothing.

    Writes profile/step-N-<worker>.json (for Perfetto) and a table of the most expensive operators beside it, also if
    the code inside raises.
    """
    if step not in config.profile_steps:
        yield
        return
    from torch.profiler import ProfilerActivity, profile, supported_activities

    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())
    path = Path(run_dir) / PROFILE / f"step-{step}-{log_name(worker)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    recording = profile(activities=sorted(wanted, key=str), record_shapes=True, profile_memory=True)
    recording.start()
    try:
        yield
    finally:
        recording.stop()
        recording.export_chrome_trace(str(path))
        order = "self_cuda_time_total" if ProfilerActivity.CUDA in wanted else "self_cpu_time_total"
        path.with_suffix(".txt").write_text(
            recording.key_averages().table(sort_by=order, row_limit=_PROFILE_TABLE_ROWS)
        )
        logger.info("profile of step %d: %s", step, path)


class CallProfile:
    """Python's profile of the parts of one training step that run inside `running`, for workers without torch.

    Example::

        profile = CallProfile()
        with profile.running():
            simulator.step()
        profile.write(run_dir, step=3, worker="env/0")
    """

    def __init__(self) -> None:
        self._profile = cProfile.Profile()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Profile the calls inside."""
        self._profile.enable()
        try:
            yield
        finally:
            self._profile.disable()

    def write(self, run_dir: Path, step: int, worker: str) -> None:
        """Write profile/step-N-<worker>.pstats, for snakeviz and pstats, and a table of the slowest functions."""
        path = Path(run_dir) / PROFILE / f"step-{step}-{log_name(worker)}.pstats"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()
        stats = Stats(self._profile, stream=text)
        stats.dump_stats(path)
        stats.strip_dirs().sort_stats("tottime").print_stats(_CALL_TABLE_ROWS)
        path.with_suffix(".txt").write_text(text.getvalue())
        logger.info("profile of step %d: %s", step, path)
