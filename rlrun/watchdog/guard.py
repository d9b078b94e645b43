"""The guard of a driver: a process beside it that tells when it stands still, or when its disk does.

The driver beats through a pipe. The guard needs neither Ray, nor Python's lock of the driver, nor a disk to speak.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.observability.run_files import BOARD, LOGS
from rlrun.observability.telemetry import stillness_s
from rlrun.system.errors import TROUBLESHOOTING
from rlrun.watchdog import node_state
from rlrun.watchdog.bounded import bounded
from rlrun.watchdog.disk_probe import DiskProbe
from rlrun.watchdog.evidence import store
from rlrun.watchdog.sentinel import answer
from rlrun.watchdog.slack import slack_here
from rlrun.watchdog.stacks import Stack, dump_worker
from rlrun.watchdog.troubles import Trouble, trouble
from rlrun.watchdog.watched_process import WatchedProcess

DRIVER = "driver/0"
DISK_S = 6.0  # for the disk of the run folder to take a small file
_ROUND_S = 1.0
_STACK_S = 8.0
_READ_S = 5.0  # for what the run folder says
_TAIL_BYTES = 20_000
_PIPE_BYTES = 65536
_PR_SET_PDEATHSIG = 1


class Guard:
    """The guard as a child of the driver, whose end it does not outlive. The driver replaces one that is gone.

    Example::

        guard = Guard(run_dir, floor_s=20.0, limit_s=lambda: 45.0)     # from now on the driver may pause for 20 s
        guard.close()
    """

    def __init__(self, run_dir: Path, floor_s: float, limit_s: Callable[[], float]):
        """limit_s: how long the driver may now go without a sign of life, although its threads run."""
        self._command = [sys.executable, "-m", "rlrun.watchdog.guard", str(run_dir), str(os.getpid()), str(floor_s)]
        self._limit_s = limit_s
        self._child = WatchedProcess("guard of the driver", self._start, self._beat, _ROUND_S)

    def _start(self) -> subprocess.Popen:
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        for stream in (process.stdin, process.stdout):
            assert stream is not None  # both are pipes
            os.set_blocking(stream.fileno(), False)
        return process

    def _beat(self, process: subprocess.Popen) -> bool:
        """Tell it how the driver is; returns whether it has told anything since."""
        line = json.dumps({"still_s": round(stillness_s(), 2), "limit_s": round(self._limit_s(), 2)}) + "\n"
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):  # it is gone, or so far behind that its pipe is full
            process.stdin.write(line.encode())
        return bool(process.stdout.read(_PIPE_BYTES))

    def close(self) -> None:
        """End it. Safe to call twice."""
        self._child.close()


class Watch:
    """What the guard knows of the driver; `look` once a second."""

    def __init__(self, run_dir: Path, pid: int, floor_s: float, say: Callable[[list[str]], None], disk: DiskProbe):
        """say: told lines that people should see at once."""
        self._run_dir, self._pid, self._floor_s, self._say, self._disk = run_dir, pid, floor_s, say, disk
        self._heard = time.monotonic()
        self._beat = {"still_s": 0.0, "limit_s": floor_s}
        self._alarmed: float | None = None  # monotonic time since which the driver stands still
        self._is_forewarned = False
        self._disk_s = 0.0  # how long the disk has not answered, where that was told

    def hear(self, beat: dict) -> None:
        """The driver has told how it is."""
        self._heard, self._beat = time.monotonic(), beat

    def look(self) -> None:
        """Tell once when the driver or the disk stands still, and once when it moves again."""
        disk_s = self._look_at_disk()
        now = time.monotonic()
        mute_s, mute_limit_s = now - self._heard, slack_here() * self._floor_s
        still_s, limit_s = self._beat["still_s"], self._beat["limit_s"]
        if mute_s > mute_limit_s:
            self._alarm(mute_s, True, disk_s)
        elif still_s > limit_s:
            self._alarm(still_s, False, disk_s)
        elif self._alarmed is not None:  # a limit that grows with the load is no movement
            if self._heard - still_s > self._alarmed + _ROUND_S:
                self._say([f"{DRIVER} moves again after {now - self._alarmed:.0f} s"])
                self._alarmed, self._is_forewarned = None, False
        elif mute_s > mute_limit_s / 2:
            self._forewarn(f"has not answered for {mute_s:.0f} s; alarm {mute_limit_s:.0f} s")
        elif still_s > limit_s / 2:
            self._forewarn(f"answers, but its main thread stands still for {still_s:.0f} s; alarm {limit_s:.0f} s")
        else:
            self._is_forewarned = False

    def _forewarn(self, what: str) -> None:
        if not self._is_forewarned:
            self._is_forewarned = True
            self._say([f"{DRIVER}@{socket.gethostname()} (pid {self._pid}) {what}"])

    def _look_at_disk(self) -> float:
        """How long it has not answered, if that is long enough to hold up the driver; else 0."""
        waited_s = self._disk.look()
        if waited_s > slack_here() * DISK_S:
            if not self._disk_s:
                kind = trouble("disk-hangs")
                sentence = f"the disk of {self._run_dir} {kind.says}: a small file has waited {waited_s:.0f} s for it"
                self._say([f"alarm: {sentence}", *_advice(kind)])
            self._disk_s = waited_s
        elif self._disk_s and not waited_s:
            self._say([f"the disk of {self._run_dir} answers again, after {self._disk_s:.0f} s"])
            self._disk_s = 0.0
        return waited_s if waited_s > DISK_S / 2 else 0.0

    def _alarm(self, silence_s: float, is_mute: bool, disk_s: float) -> None:
        """The sentence first: what is written may wait for ever."""
        if self._alarmed is not None:
            return
        state = node_state.state(self._pid)
        if state in ("gone", "Z"):
            return
        self._alarmed = time.monotonic() - silence_s
        log = self._run_dir / LOGS / "driver-0.log"
        stack = bounded("stack", lambda: dump_worker(self._pid, log), Stack((), False, ""), [], _STACK_S)
        kind = _kind(state, is_mute, stack.holds_gil, disk_s)
        where = f", in {stack.where}" if stack.where else ""
        name = f"{DRIVER}@{socket.gethostname()} (pid {self._pid})"
        sentence = f"{name} {kind.says} and has not moved for {silence_s:.0f} s{where}"
        if disk_s:
            sentence = f"{name} has not moved for {silence_s:.0f} s{where}; the disk of {self._run_dir} {kind.says}"
        self._say([f"alarm: {sentence}", *_advice(kind)])
        threading.Thread(target=self._keep_evidence, args=(sentence, kind), daemon=True).start()

    def _keep_evidence(self, sentence: str, kind: Trouble) -> None:
        processes = bounded("board", self._processes, {}, [], _READ_S) | {DRIVER: self._pid}
        told = answer({"run_dir": str(self._run_dir), "processes": processes, "is_full": True}, [])
        files = {f"{socket.gethostname()}/{name}": text for name, text in told["files"].items()}
        archive, remark = store(self._run_dir, {"alarm.txt": f"{sentence}\n-> {kind.fix}\n", **files})
        short = [*told["full_disks"], *([told["memory"]] if told["memory"] else [])]
        self._say(["; ".join([*short, f"evidence: {archive}{remark}"])])

    def _processes(self) -> dict[str, int]:
        """The run's processes on this host, as their own records name them."""
        beats = {path.stem: _last_line(path) for path in (self._run_dir / BOARD).glob("*.jsonl")}
        here = {name: beat for name, beat in beats.items() if beat.get("host") == socket.gethostname()}
        return {name.replace("-", "/"): beat["pid"] for name, beat in here.items()}


def speak(run_dir: Path, lines: list[str]) -> None:
    """On the driver's console, and then, if its disk takes it, in the driver's log."""
    text = "\n  ".join(lines)
    print(f"rlrun: {text}", file=sys.stderr, flush=True)
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} guard: {text}\n"
    threading.Thread(target=_log, args=(run_dir / LOGS / "driver-0.log", line), daemon=True).start()


def _log(path: Path, line: str) -> None:
    with suppress(OSError), path.open("a", encoding="utf-8") as log:  # a full disk; the console has it
        log.write(line)


def _advice(kind: Trouble) -> list[str]:
    return [f"remedy: {kind.fix}", f"see: {TROUBLESHOOTING}#{kind.name}"]


def _kind(state: str, is_mute: bool, holds_gil: bool, disk_s: float) -> Trouble:
    if state in ("T", "t"):
        return trouble("stopped")
    if disk_s:
        return trouble("disk-hangs")
    if is_mute:
        return trouble("gil-held" if holds_gil else "mute")
    return trouble("driver-asleep")


def _last_line(path: Path) -> dict:
    """The last whole line of a file of JSON objects; {} where there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return {}
    return _last_object(lines) or {}


def _last_object(lines: list[str]) -> dict | None:
    for line in reversed(lines):
        with suppress(ValueError):
            return json.loads(line)
    return None


def _heard(seconds: float) -> dict | None:
    """The last beat that came within so many seconds; None: none. A beat is much shorter than what a pipe takes."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return _last_object(os.read(sys.stdin.fileno(), _PIPE_BYTES).decode().splitlines()) if ready else None


def main() -> None:
    """Watch until the driver is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("pid", type=int)
    parser.add_argument("floor_s", type=float)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # meant for the run
    run_dir: Path = options.run_dir
    watch = Watch(run_dir, options.pid, options.floor_s, lambda lines: speak(run_dir, lines), DiskProbe(run_dir))
    while os.getppid() == options.pid:
        beat = _heard(_ROUND_S)
        if beat is not None:
            watch.hear(beat)
        watch.look()
        os.write(sys.stdout.fileno(), b".")
        time.sleep(_ROUND_S / 4)


if __name__ == "__main__":
    main()
