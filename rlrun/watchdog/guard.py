"""Guard of a driver: a separate process that reports when the driver, or the disk of its run folder, hangs.

The driver sends heartbeats through a pipe. The guard needs neither Ray nor the driver's GIL, and prints before it
writes to a disk. It outlives a killed driver by some seconds: it reports how the driver ended and how to resume the
run, and ends the processes left over of the private Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rlrun.config.recorded import CHECKPOINTS
from rlrun.data import checkpoint_folder
from rlrun.observability.run_files import BOARD, LOGS, last_object
from rlrun.system.errors import TROUBLESHOOTING, indent
from rlrun.system.local_files import folder_for_ray
from rlrun.system.machine_load import local_load_factor, num_oom_kills
from rlrun.system.run_queue import QueueTime, queue_seconds
from rlrun.system.telemetry import seconds_since_alive
from rlrun.watchdog import node_state
from rlrun.watchdog.diagnosis import Problem, problem
from rlrun.watchdog.evidence import write_archive
from rlrun.watchdog.probes import DiskProbe, run_with_timeout
from rlrun.watchdog.sentinel import node_evidence
from rlrun.watchdog.stacks import Stack, dump_worker
from rlrun.watchdog.supervised import SupervisedProcess, describe_end, end_left_over_ray, ignore_run_signals
from rlrun.watchdog.wait_graph import IDLE

DRIVER = "driver/0"
DISK_TIMEOUT_S = 6.0  # for the disk of the run folder to take a small file
_MOVED_S = 1.0
_STACK_TIMEOUT_S = 8.0
_READ_TIMEOUT_S = 5.0  # for reading the run folder
_HEARTBEAT_PERIOD_S = 1.0
_PIPE_BYTES = 65536
_MAX_OUTLIVED_S = 40  # the guard ends at the latest this long after the driver, also if disk and console hang
_CONSOLE_TIMEOUT_S = 5.0  # for the console to accept a line, and for the run folder to list its checkpoints


class DriverMonitor:
    """Monitor of the driver's heartbeats and its disk, in the guard; `check` is called about once a second."""

    def __init__(
        self, run_dir: Path, pid: int, floor_s: float, print_report: Callable[[list[str]], object], disk: DiskProbe
    ):
        """floor_s: time without a heartbeat until an alarm. report: receives lines to print immediately."""
        self._run_dir = run_dir
        self._pid = pid
        self._floor_s = floor_s
        self._report = print_report
        self._disk = disk
        self._received_at = time.monotonic()
        self._heartbeat: dict = {"blocked_s": 0.0, "limit_s": floor_s, "phase": IDLE}
        self._blocked_since: float | None = None  # monotonic time; None: no alarm is on
        self._is_warned = False
        self._queue_time = QueueTime()
        self._disk_s = 0.0  # how long the disk has not responded, once that is reported

    def receive(self, heartbeat: dict) -> None:
        """Store a heartbeat of the driver. Example: {"blocked_s": 0.3, "limit_s": 45.0, "phase": "save"}."""
        self._received_at = time.monotonic()
        self._heartbeat = heartbeat

    def check(self) -> None:
        """Report once when the driver or the disk hangs, and once when it continues."""
        disk_s = self._check_disk()
        now = time.monotonic()
        silent_s = self._without_queue("silent", now - self._received_at, now)
        unresponsive_limit_s = local_load_factor() * self._floor_s
        blocked_s = self._without_queue("blocked", self._heartbeat["blocked_s"], self._received_at)
        limit_s = self._heartbeat["limit_s"]
        if silent_s > unresponsive_limit_s:
            self._alarm(silent_s, True, disk_s)
        elif blocked_s > limit_s:
            self._alarm(blocked_s, False, disk_s)
        elif self._blocked_since is not None:  # a limit that grew with the load is no progress
            if self._received_at - blocked_s > self._blocked_since + _MOVED_S:
                self._report([f"{DRIVER} moves again after {now - self._blocked_since:.0f} s"])
                self._blocked_since = None
                self._is_warned = False
        elif silent_s > unresponsive_limit_s / 2:
            self._warn(f"has not answered for {silent_s:.0f} s; alarm {unresponsive_limit_s:.0f} s")
        elif blocked_s > limit_s / 2:
            phase = self._heartbeat["phase"]
            where = "" if phase == IDLE else f" in {phase}"
            alarm = f"alarm {limit_s:.0f} s"
            self._warn(f"answers, but its main thread has been blocked for {blocked_s:.0f} s{where}; {alarm}")
        else:
            self._is_warned = False

    def _without_queue(self, kind: str, silence_s: float, now: float) -> float:
        """Return a silence of the driver without the time for which it, or this process, waited for a core."""
        sample = partial(queue_seconds, [self._pid, os.getpid()], with_children=False)
        return silence_s - self._queue_time.within(kind, silence_s, now, sample)

    def _warn(self, what: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            self._report([f"{DRIVER}@{socket.gethostname()} (pid {self._pid}) {what}"])

    def _check_disk(self) -> float:
        """Return the time for which the disk has not responded, if it is long enough to block the driver; else 0."""
        waited_s = self._disk.check()
        if waited_s > local_load_factor() * DISK_TIMEOUT_S:
            if not self._disk_s:
                row = problem("disk-hangs")
                sentence = (
                    f"the disk of {self._run_dir} {row.predicate}: a small file has waited {waited_s:.0f} s for it"
                )
                self._report([f"alarm: {sentence}", *_advice(row)])
            self._disk_s = waited_s
        elif self._disk_s and not waited_s:
            self._report([f"the disk of {self._run_dir} answers again, after {self._disk_s:.0f} s"])
            self._disk_s = 0.0
        return waited_s if waited_s > DISK_TIMEOUT_S / 2 else 0.0

    def _alarm(self, silence_s: float, is_unresponsive: bool, disk_s: float) -> None:
        """Report first, since a write may never return; then collect evidence in a thread."""
        if self._blocked_since is not None:
            return
        state = node_state.state(self._pid)
        if state in ("gone", "Z"):
            return
        self._blocked_since = time.monotonic() - silence_s
        log = self._run_dir / LOGS / "driver-0.log"
        stack = run_with_timeout(
            "stack", lambda: dump_worker(self._pid, log), Stack((), False, ""), [], _STACK_TIMEOUT_S
        )
        row = _driver_problem(state, is_unresponsive, stack.holds_gil, disk_s)
        where = f", in {stack.where}" if stack.where else ""
        name = f"{DRIVER}@{socket.gethostname()} (pid {self._pid})"
        sentence = f"{name} {row.predicate} and has not moved for {silence_s:.0f} s{where}"
        if disk_s:
            sentence = f"{name} has not moved for {silence_s:.0f} s{where}; the disk of {self._run_dir} {row.predicate}"
        self._report([f"alarm: {sentence}", *_advice(row)])
        threading.Thread(target=self._keep_evidence, args=(sentence, row), daemon=True).start()

    def _keep_evidence(self, sentence: str, row: Problem) -> None:
        processes = run_with_timeout("board", self._processes, {}, [], _READ_TIMEOUT_S) | {DRIVER: self._pid}
        evidence = node_evidence({"run_dir": str(self._run_dir), "processes": processes, "is_full": True}, [])
        files = {f"{socket.gethostname()}/{name}": text for name, text in evidence["files"].items()}
        archive, remark = write_archive(self._run_dir, {"alarm.txt": f"{sentence}\n-> {row.fix}\n", **files})
        short = [*evidence["full_disks"], *([evidence["memory"]] if evidence["memory"] else [])]
        self._report(["; ".join([*short, f"evidence: {archive}{remark}"])])

    def _processes(self) -> dict[str, int]:
        """Return worker -> pid for the run's processes on this host, from their heartbeat files."""
        last = {path.stem: _last_line(path) for path in (self._run_dir / BOARD).glob("*.jsonl")}
        here = {name: status for name, status in last.items() if status.get("host") == socket.gethostname()}
        return {name.replace("-", "/"): status["pid"] for name, status in here.items()}


def print_report(run_dir: Path, lines: list[str]) -> threading.Thread:
    """Print to the driver's console. Returns the thread that then appends to the driver's log if its disk responds."""
    text = indent("\n".join(lines))
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # the live view has its cursor in the middle of a line
    with suppress(OSError):  # the terminal is gone
        print(f"{clear}rlrun: {text}", file=sys.stderr, flush=True)
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} guard: {text}\n"
    logging = threading.Thread(target=_append_line, args=(run_dir / LOGS / "driver-0.log", line), daemon=True)
    logging.start()
    return logging


def _last_line(path: Path) -> dict:
    """Return the last complete object of a file of JSON lines; {} if there is none."""
    return last_object(node_state.tail(path).splitlines()) or {}


def _append_line(path: Path, line: str) -> None:
    with suppress(OSError), path.open("a", encoding="utf-8") as log:  # a full disk; the line is on the console
        log.write(line)


def _advice(row: Problem) -> list[str]:
    return [f"remedy: {row.fix}", f"see: {TROUBLESHOOTING}#{row.name}"]


def _driver_problem(state: str, is_unresponsive: bool, holds_gil: bool, disk_s: float) -> Problem:
    if state in ("T", "t"):
        return problem("stopped")
    if disk_s:
        return problem("disk-hangs")
    if is_unresponsive:
        return problem("gil-held" if holds_gil else "unresponsive")
    return problem("driver-asleep")


class Guard:
    """The guard's process as a child of the driver, which restarts it when it fails.

    Example::

        guard = Guard(run_dir, 20.0, lambda: 45.0, lambda: "save")     # an alarm comes after 20 s without a heartbeat
        guard.close()
    """

    def __init__(
        self,
        run_dir: Path,
        floor_s: float,
        limit_s: Callable[[], float],
        phase: Callable[[], str],
        resume: str = "",
        temp_dir: str | None = None,
    ):
        """limit_s: returns the current limit of the driver's main thread without progress. phase: returns its phase.

        resume: the command that resumes the run; "": it cannot be resumed. temp_dir: parent of a private Ray's folder;
        None: the temporary folder of the system.
        """
        options = [f"--resume={resume}", f"--temp-dir={folder_for_ray(temp_dir).path}"]
        words = [str(run_dir), str(os.getpid()), str(floor_s), *options]
        self._command = [sys.executable, "-P", "-m", "rlrun.watchdog.guard", *words]
        self._limit_s = limit_s
        self._phase = phase
        self._child = SupervisedProcess("guard of the driver", self._start, self._send_heartbeat, _HEARTBEAT_PERIOD_S)

    def _start(self) -> subprocess.Popen:
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        for stream in (process.stdin, process.stdout):
            assert stream is not None  # both are pipes
            os.set_blocking(stream.fileno(), False)
        return process

    def _send_heartbeat(self, process: subprocess.Popen) -> bool:
        """Send the driver's state to the guard. Returns whether the guard has answered since the last call."""
        limit_s = round(self._limit_s(), 2)
        state = {"blocked_s": round(seconds_since_alive(), 2), "limit_s": limit_s, "phase": self._phase()}
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):  # the guard has ended, or is so far behind that the pipe is full
            process.stdin.write(json.dumps(state).encode() + b"\n")
        return bool(process.stdout.read(_PIPE_BYTES))

    def close(self) -> None:
        """End the guard. Safe to call twice."""
        self._child.close()


def _read_heartbeat(timeout_s: float) -> dict | None:
    """Return the last heartbeat that arrives within `timeout_s`; None without one. Writes to the pipe are atomic."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return last_object(os.read(sys.stdin.fileno(), _PIPE_BYTES).decode().splitlines()) if ready else None


def _report_end(run_dir: Path, pid: int, how: str, resume: str, temp_dir: str) -> None:
    """Report how the driver ended and how to resume the run, and end the left-over processes of its Ray."""

    def show(lines: list[str]) -> None:
        shown = run_with_timeout("console", lambda: print_report(run_dir, lines), None, [], _CONSOLE_TIMEOUT_S)
        if shown is not None:  # else the terminal is gone
            shown.join(timeout=_CONSOLE_TIMEOUT_S)

    lines = [f"{DRIVER}@{socket.gethostname()} (pid {pid}) ended without closing the run: {how}"]
    newest = run_with_timeout(
        "checkpoints", lambda: checkpoint_folder.latest(run_dir / CHECKPOINTS), None, [], _CONSOLE_TIMEOUT_S
    )
    if resume:
        where = f"from {newest.name}" if newest is not None else "no checkpoint is complete yet"
        lines.append(f"to resume ({where}): {resume}")
    show(lines)
    left = end_left_over_ray(pid, temp_dir)
    if left:
        show(left)


def main() -> None:
    """Monitor the driver until it ends. A driver that ends without ending this process was killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("pid", type=int)
    parser.add_argument("floor_s", type=float)
    parser.add_argument("--resume", default="")
    parser.add_argument("--temp-dir", default=tempfile.gettempdir())
    options = parser.parse_args()
    ignore_run_signals()
    run_dir: Path = options.run_dir
    descriptor = -1
    oom_kills = num_oom_kills()
    with suppress(OSError):  # it has ended already
        descriptor = os.pidfd_open(options.pid)
    monitor = DriverMonitor(
        run_dir, options.pid, options.floor_s, lambda lines: print_report(run_dir, lines), DiskProbe(run_dir)
    )
    while os.getppid() == options.pid:
        heartbeat = _read_heartbeat(_HEARTBEAT_PERIOD_S)
        if heartbeat is not None:
            monitor.receive(heartbeat)
        monitor.check()
        with suppress(BrokenPipeError):  # the driver has ended
            os.write(sys.stdout.fileno(), b".")
        time.sleep(_HEARTBEAT_PERIOD_S / 4)
    signal.alarm(_MAX_OUTLIVED_S)
    how = describe_end(options.pid, descriptor) or "nobody knows how"
    if how == "killed by SIGKILL" and num_oom_kills() > oom_kills:
        how += ": the kernel killed a process of its control group, perhaps this one, for memory"
    _report_end(run_dir, options.pid, how, options.resume, options.temp_dir)


if __name__ == "__main__":
    main()
