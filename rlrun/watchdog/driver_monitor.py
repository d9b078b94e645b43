"""Decides, in the guard, whether the driver or its disk hangs; reports that, and collects evidence on this host."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.observability.run_files import BOARD, LOGS, last_object
from rlrun.system.errors import TROUBLESHOOTING, hanging
from rlrun.system.machine_load import local_load_factor
from rlrun.watchdog import node_state
from rlrun.watchdog.disk_probe import DiskProbe
from rlrun.watchdog.evidence import store
from rlrun.watchdog.node_evidence import node_evidence
from rlrun.watchdog.problems import Problem, problem
from rlrun.watchdog.stacks import Stack, dump_worker
from rlrun.watchdog.timeout import run_with_timeout

DRIVER = "driver/0"
DISK_S = 6.0  # for the disk of the run folder to take a small file
_MOVED_S = 1.0
_STACK_S = 8.0
_READ_S = 5.0  # for reading the run folder


class DriverMonitor:
    """The state of the driver as its heartbeats report it; `check` is called about once a second."""

    def __init__(self, run_dir: Path, pid: int, floor_s: float, report: Callable[[list[str]], object], disk: DiskProbe):
        """floor_s: an alarm comes after so long without a heartbeat. report: receives lines to print at once."""
        self._run_dir, self._pid, self._floor_s, self._report, self._disk = run_dir, pid, floor_s, report, disk
        self._received_at = time.monotonic()
        self._heartbeat = {"blocked_s": 0.0, "limit_s": floor_s}
        self._blocked_since: float | None = None  # monotonic time; None: no alarm is on
        self._is_warned = False
        self._disk_s = 0.0  # how long the disk has not responded, once that is reported

    def receive(self, heartbeat: dict) -> None:
        """Store a heartbeat of the driver. Example: {"blocked_s": 0.3, "limit_s": 45.0}."""
        self._received_at, self._heartbeat = time.monotonic(), heartbeat

    def check(self) -> None:
        """Report once when the driver or the disk hangs, and once when it goes on."""
        disk_s = self._check_disk()
        now = time.monotonic()
        silent_s, unresponsive_limit_s = now - self._received_at, local_load_factor() * self._floor_s
        blocked_s, limit_s = self._heartbeat["blocked_s"], self._heartbeat["limit_s"]
        if silent_s > unresponsive_limit_s:
            self._alarm(silent_s, True, disk_s)
        elif blocked_s > limit_s:
            self._alarm(blocked_s, False, disk_s)
        elif self._blocked_since is not None:  # a limit that grew with the load is no progress
            if self._received_at - blocked_s > self._blocked_since + _MOVED_S:
                self._report([f"{DRIVER} moves again after {now - self._blocked_since:.0f} s"])
                self._blocked_since, self._is_warned = None, False
        elif silent_s > unresponsive_limit_s / 2:
            self._warn(f"has not answered for {silent_s:.0f} s; alarm {unresponsive_limit_s:.0f} s")
        elif blocked_s > limit_s / 2:
            self._warn(f"answers, but its main thread has been blocked for {blocked_s:.0f} s; alarm {limit_s:.0f} s")
        else:
            self._is_warned = False

    def _warn(self, what: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            self._report([f"{DRIVER}@{socket.gethostname()} (pid {self._pid}) {what}"])

    def _check_disk(self) -> float:
        """Return how long the disk has not responded, if that is long enough to block the driver; else 0."""
        waited_s = self._disk.check()
        if waited_s > local_load_factor() * DISK_S:
            if not self._disk_s:
                row = problem("disk-hangs")
                sentence = f"the disk of {self._run_dir} {row.says}: a small file has waited {waited_s:.0f} s for it"
                self._report([f"alarm: {sentence}", *_advice(row)])
            self._disk_s = waited_s
        elif self._disk_s and not waited_s:
            self._report([f"the disk of {self._run_dir} answers again, after {self._disk_s:.0f} s"])
            self._disk_s = 0.0
        return waited_s if waited_s > DISK_S / 2 else 0.0

    def _alarm(self, silence_s: float, is_unresponsive: bool, disk_s: float) -> None:
        """Report first, since a write may never return; then collect evidence in a thread."""
        if self._blocked_since is not None:
            return
        state = node_state.state(self._pid)
        if state in ("gone", "Z"):
            return
        self._blocked_since = time.monotonic() - silence_s
        log = self._run_dir / LOGS / "driver-0.log"
        stack = run_with_timeout("stack", lambda: dump_worker(self._pid, log), Stack((), False, ""), [], _STACK_S)
        row = _problem(state, is_unresponsive, stack.holds_gil, disk_s)
        where = f", in {stack.where}" if stack.where else ""
        name = f"{DRIVER}@{socket.gethostname()} (pid {self._pid})"
        sentence = f"{name} {row.says} and has not moved for {silence_s:.0f} s{where}"
        if disk_s:
            sentence = f"{name} has not moved for {silence_s:.0f} s{where}; the disk of {self._run_dir} {row.says}"
        self._report([f"alarm: {sentence}", *_advice(row)])
        threading.Thread(target=self._keep_evidence, args=(sentence, row), daemon=True).start()

    def _keep_evidence(self, sentence: str, row: Problem) -> None:
        processes = run_with_timeout("board", self._processes, {}, [], _READ_S) | {DRIVER: self._pid}
        found = node_evidence({"run_dir": str(self._run_dir), "processes": processes, "is_full": True}, [])
        files = {f"{socket.gethostname()}/{name}": text for name, text in found["files"].items()}
        archive, remark = store(self._run_dir, {"alarm.txt": f"{sentence}\n-> {row.fix}\n", **files})
        short = [*found["full_disks"], *([found["memory"]] if found["memory"] else [])]
        self._report(["; ".join([*short, f"evidence: {archive}{remark}"])])

    def _processes(self) -> dict[str, int]:
        """Return worker -> pid for the run's processes on this host, from their heartbeat files."""
        last = {path.stem: _last_line(path) for path in (self._run_dir / BOARD).glob("*.jsonl")}
        here = {name: status for name, status in last.items() if status.get("host") == socket.gethostname()}
        return {name.replace("-", "/"): status["pid"] for name, status in here.items()}


def report(run_dir: Path, lines: list[str]) -> threading.Thread:
    """Print to the driver's console. Returns the thread that then appends to the driver's log if its disk responds."""
    text = hanging("\n".join(lines))
    with suppress(OSError):  # the terminal is gone
        print(f"rlrun: {text}", file=sys.stderr, flush=True)
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} guard: {text}\n"
    logging = threading.Thread(target=_log, args=(run_dir / LOGS / "driver-0.log", line), daemon=True)
    logging.start()
    return logging


def _last_line(path: Path) -> dict:
    """Return the last whole object of a file of JSON lines; {} if there is none."""
    return last_object(node_state.tail(path).splitlines()) or {}


def _log(path: Path, line: str) -> None:
    with suppress(OSError), path.open("a", encoding="utf-8") as log:  # a full disk; the line is on the console
        log.write(line)


def _advice(row: Problem) -> list[str]:
    return [f"remedy: {row.fix}", f"see: {TROUBLESHOOTING}#{row.name}"]


def _problem(state: str, is_unresponsive: bool, holds_gil: bool, disk_s: float) -> Problem:
    if state in ("T", "t"):
        return problem("stopped")
    if disk_s:
        return problem("disk-hangs")
    if is_unresponsive:
        return problem("gil-held" if holds_gil else "unresponsive")
    return problem("driver-asleep")
