"""Timeline of all workers as a trace for Perfetto and chrome://tracing, sums of its spans, and profiles of steps."""

from __future__ import annotations

import cProfile
import io
import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from pstats import Stats
from typing import Any

from rlrun.config.schema import LoggingConfig
from rlrun.observability.run_files import PROFILE, log_name
from rlrun.system.local_files import parse_json
from rlrun.system.status import Span

ROLE_ORDER = ("driver", "env", "rollout", "actor")
WAIT_PREFIX = "wait"  # of spans that are not work
REQUEST_INTERVAL_S = 1.0
FIRST_SPANS = 100_000  # of a run, which its timeline keeps
NEWEST_SPANS = 100_000  # which it keeps too; twice as many are written before the older half is left out
LEFT_OUT = "left out"  # row of a timeline that stands for the spans between
MAX_COVERED = 10_000  # events of that row

_Written = tuple[int, int, int, str, str]  # end and start in microseconds, process, phase, line
logger = logging.getLogger(__name__)
_PROFILE_TABLE_ROWS = 20
_CALL_TABLE_ROWS = 40


def is_work(phase: str) -> bool:
    """Return False for "wait…" and "idle"."""
    return not phase.startswith(WAIT_PREFIX) and phase != "idle"


class TimelineWriter:
    """Writer of a JSON array of trace events, with one process row per worker.

    The file of a long run holds its first and its newest spans. The row LEFT_OUT covers the time of the spans between,
    and holds their sums, so that `seconds_by_phase` stays right; only a span that is longer than the time of the newest
    spans counts what was left out inside it twice. `close` writes the closing bracket; Perfetto also opens the file of
    a killed run without it. A resumed run continues the array.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._pids: dict[str, int] = {}
        self._rows: list[str] = []  # names of processes that are not in the first part of the file
        self._first: list[_Written] = []  # what a span that is left out later can be nested with
        self._num_first = 0
        self._first_bytes = 0  # length of the file's part with the first spans
        self._newest: list[_Written] = []
        self._left_out = _LeftOut()
        is_resumed = path.exists()
        self._path = _temporary_path(path) if is_resumed else path
        self._open(self._path)
        if is_resumed:
            for event in _events(path):
                self._take(event)
                self._bound()
            self._file.flush()
            os.replace(self._path, path)
            self._path = path

    def add(self, worker: str, spans: Iterable[Span]) -> None:
        """Append closed spans, as "collect 57" in training step 57. Nested spans of a worker are shown nested."""
        for span in spans:
            name = span.name if span.step is None else f"{span.name} {span.step}"
            event = _event(name, "X", self._pid(worker), span.start_s) | {"cat": span.name}
            event["dur"] = max(1, round(1e6 * (span.end_s - span.start_s)))
            if span.detail:
                event["args"] = {"detail": span.detail}
            self._write_span(event)
        self._file.flush()
        self._bound()

    def close(self) -> None:
        """End the array. Safe to call twice."""
        if not self._file.closed:
            self._file.write("\n]\n")
            self._file.close()

    def _open(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._file.write("[")
        self._is_empty = True
        self._num_bytes = 1

    def _pid(self, worker: str) -> int:
        if worker not in self._pids:
            pid = self._pids[worker] = len(self._pids) + 1
            for name, args in (
                ("process_name", {"name": worker}),
                ("process_sort_index", {"sort_index": _sort_index(worker)}),
            ):
                self._write_row(_event(name, "M", pid, 0.0) | {"args": args})
        return self._pids[worker]

    def _take(self, event: dict[str, Any]) -> None:
        """Append an event of the run before it was resumed."""
        if event["ph"] == "M" and event["name"] == "process_name":
            self._pids[event["args"]["name"]] = event["pid"]
        if self._left_out.take(event):
            self._num_first = max(self._num_first, FIRST_SPANS)  # what follows are the newest spans
            self._write(json.dumps(event))
        elif event["ph"] == "X":
            self._write_span(event)
        else:
            self._write_row(event)

    def _write_span(self, event: dict[str, Any]) -> None:
        line = json.dumps(event)
        start = event["ts"]
        self._write(line)
        if self._num_first < FIRST_SPANS:
            self._num_first += 1
            self._first.append((start + event["dur"], start, event["pid"], _phase(event), ""))
            self._first_bytes = self._num_bytes
            self._rows.clear()
            return
        self._newest.append((start + event["dur"], start, event["pid"], _phase(event), line))

    def _write_row(self, event: dict[str, Any]) -> None:
        line = json.dumps(event)
        self._rows.append(line)
        self._write(line)

    def _write(self, line: str) -> None:
        text = ("\n" if self._is_empty else ",\n") + line
        self._num_bytes += len(text)  # JSON of Python is ASCII
        self._file.write(text)
        self._is_empty = False

    def _bound(self) -> None:
        if len(self._newest) >= 2 * NEWEST_SPANS:
            self._leave_out()

    def _leave_out(self) -> None:
        """Write the file anew, without all but the first and the newest spans. Its reader sees the old or the new one.

        Their sums are a difference, since a span and one that is nested in it may be on both sides.
        """
        pid = self._pid(LEFT_OUT)
        self._newest.sort(key=itemgetter(0))
        num_left_out = len(self._newest) - NEWEST_SPANS
        left_out = self._newest[:num_left_out]
        self._newest = self._newest[num_left_out:]
        start = min(start for _, start, *_ in left_out)
        end = left_out[-1][0]
        beside = [span for span in (*self._first, *self._newest) if span[1] < end and span[0] > start]
        before = _own_us([*left_out, *beside])
        after = _own_us(beside)
        for name, worker in self._pids.items():
            self._left_out.add(name, before[worker])
            self._left_out.add(name, {phase: -us for phase, us in after[worker].items()})
        self._left_out.cover((start, end) for end, start, *_ in left_out)
        self._left_out.num_spans += num_left_out
        newest_start = min(start for _, start, *_ in self._newest)
        self._first = [span for span in self._first if span[0] > newest_start]
        self._write_anew(pid)

    def _write_anew(self, pid: int) -> None:
        self._file.close()
        with self._path.open("rb") as former:
            self._open(_temporary_path(self._path))
            self._file.write(former.read(self._first_bytes).decode()[1:])
        self._is_empty = self._first_bytes <= 1
        self._num_bytes = self._first_bytes
        for line in (*self._rows, *map(json.dumps, self._left_out.events(pid)), *(line for *_, line in self._newest)):
            self._write(line)
        self._file.flush()
        os.replace(_temporary_path(self._path), self._path)


class _LeftOut:
    """Sums of the spans that a timeline no longer holds, in microseconds."""

    def __init__(self) -> None:
        self.num_spans = 0
        self.us: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))  # worker -> phase
        self.covered: list[tuple[int, int]] = []  # start and end of the times in which a worker had a span

    def add(self, worker: str, by_phase: Mapping[str, float]) -> None:
        """Add times of a worker."""
        for phase, us in by_phase.items():
            self.us[worker][phase] += us

    def cover(self, times: Iterable[tuple[int, int]]) -> None:
        """Add starts and ends of spans. Of very many gaps between them, the shortest are forgotten."""
        self.covered = _union([*self.covered, *times])
        if len(self.covered) > MAX_COVERED:
            gaps = sorted(after[0] - before[1] for before, after in pairwise(self.covered))
            self.covered = _union(self.covered, gaps[-MAX_COVERED // 2])

    def events(self, pid: int) -> Iterator[dict[str, Any]]:
        """Yield the events that hold all of this."""
        args: dict[str, Any] = {"num_spans": self.num_spans, "microseconds": self.us}
        for start, end in self.covered:
            event = _event(LEFT_OUT, "X", pid, 0.0) | {"ts": start, "dur": end - start, "cat": LEFT_OUT}
            yield event | ({"args": args} if args else {})
            args = {}

    def take(self, event: dict[str, Any]) -> bool:
        """Add an event of `events`. Return False for any other."""
        if event.get("cat") != LEFT_OUT:
            return False
        args = event.get("args", {})
        self.num_spans += args.get("num_spans", 0)
        for worker, by_phase in args.get("microseconds", {}).items():
            self.add(worker, by_phase)
        self.covered.append((event["ts"], event["ts"] + event["dur"]))
        return True


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a timeline, which may be incomplete."""
    return list(_events(path))


def _events(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = parse_json(line.strip().rstrip(","))
            except ValueError:
                continue  # a bracket, or the incomplete last line
            if isinstance(event, dict):
                yield event


def seconds_by_phase(path: Path) -> dict[str, dict[str, float]]:
    """Return worker -> phase -> seconds. The time of a span excludes spans nested in it, so that phases add up.

    Time that is covered by spans of other workers only is the phase "idle": the phases of every worker add up to the
    same total. Example: {"env/0": {"simulate": 41.2, "wait for actions": 12.0, "idle": 3.1}}
    """
    names: dict[int, str] = {}
    spans: list[_Written] = []
    seconds = _LeftOut()
    for event in _events(path):
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "X" and not seconds.take(event):
            spans.append((event["ts"] + event["dur"], event["ts"], event["pid"], _phase(event), ""))
    for pid, by_phase in _own_us(spans).items():
        seconds.add(names.get(pid, ""), by_phase)
    run_us = sum(end - start for start, end in _union([*seconds.covered, *((start, end) for end, start, *_ in spans)]))
    seconds_of_workers: dict[str, dict[str, float]] = {}
    for worker in sorted(set(names.values()) & set(seconds.us), key=lambda name: (_sort_index(name), name)):
        by_phase = seconds.us[worker]
        seconds_of_workers[worker] = {phase: us / 1e6 for phase, us in by_phase.items()}
        seconds_of_workers[worker]["idle"] = max(0.0, run_us - sum(by_phase.values())) / 1e6
    return seconds_of_workers


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
            self._since_s = None
            self._asked_s = end_s
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


def _own_us(spans: Iterable[_Written]) -> dict[int, dict[str, float]]:
    """Return process -> phase -> microseconds, by `own_seconds`."""
    by_pid: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for end, start, pid, phase, _ in spans:
        by_pid[pid].append((start, end, phase))
    return defaultdict(dict, {pid: own_seconds(own_spans) for pid, own_spans in by_pid.items()})


def _union(times: Iterable[tuple[int, int]], gap: int = 0) -> list[tuple[int, int]]:
    """Return the union of times from start to end, in order; those that are at most `gap` apart become one."""
    union: list[tuple[int, int]] = []
    for start, end in sorted(times):
        if union and start <= union[-1][1] + gap:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def _phase(event: Mapping[str, Any]) -> str:
    return event.get("cat", event["name"])


def _temporary_path(path: Path) -> Path:
    """Return the path of a timeline in writing, which then replaces the one at `path`."""
    return path.with_name(f"{path.name}.new")


def _event(name: str, kind: str, pid: int, time_s: float) -> dict[str, Any]:
    return {"name": name, "ph": kind, "pid": pid, "tid": pid, "ts": round(1e6 * time_s)}


def _sort_index(worker: str) -> int:
    role, _, rank = worker.partition("/")
    order = ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER)
    return 10_000 * order + (int(rank) if rank.isdigit() else 0)


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
