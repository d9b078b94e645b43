"""The guard of a driver: a process beside it that tells when it stands still, which nothing inside it could.

It reads the file of the driver's heartbeat, and needs neither Ray nor Python's lock of the driver.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from rlrun.config.errors import TROUBLESHOOTING
from rlrun.observability.run_files import BOARD, LOGS
from rlrun.watchdog import node_state
from rlrun.watchdog.evidence import pack
from rlrun.watchdog.sentinel import answer
from rlrun.watchdog.troubles import Trouble, trouble

DRIVER = "driver/0"
_ROUND_S = 1.0
_USUAL_LOAD = 2.0  # processes per core; beyond, everything takes longer, and patience grows alike
_TAIL_BYTES = 20_000
_PR_SET_PDEATHSIG = 1


class Guard:
    """The guard as a child of the driver, whose end it does not outlive.

    Example::

        guard = Guard(run_dir, floor_s=20.0)     # from now on the heartbeat may pause for 20 s
        guard.close()
    """

    def __init__(self, run_dir: Path, floor_s: float):
        command = [sys.executable, "-m", "rlrun.watchdog.guard", str(run_dir), str(os.getpid()), str(floor_s)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def close(self) -> None:
        """End it. Safe to call twice."""
        self._process.kill()
        self._process.wait(timeout=5.0)


class Watch:
    """What the guard knows of the driver; `look` once a second."""

    def __init__(self, run_dir: Path, pid: int, floor_s: float):
        self._run_dir, self._pid, self._floor_s = run_dir, pid, floor_s
        self._path = run_dir / BOARD / "driver-0.jsonl"
        self._seen: tuple[int, int] | None = None  # of the heartbeat's file: time of change, size
        self._changed = time.monotonic()
        self._alarmed: float | None = None  # monotonic time since which the driver stands still

    def look(self) -> None:
        """Tell once when the driver stands still, and once when it moves again."""
        now = time.monotonic()
        self._read(now)
        mute_s, beat = now - self._changed, self._last_beat()
        slack = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / _USUAL_LOAD)
        still_s, limit_s = beat.get("still_s", 0.0), beat.get("limit_s", self._floor_s)
        if mute_s > slack * self._floor_s:
            self._alarm(mute_s, is_mute=True)
        elif still_s > limit_s:
            self._alarm(still_s, is_mute=False)
        elif self._alarmed is not None:
            self._say([f"{DRIVER} moves again after {now - self._alarmed:.0f} s"])
            self._alarmed = None

    def _read(self, now: float) -> None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return
        if (found.st_mtime_ns, found.st_size) != self._seen:
            self._seen, self._changed = (found.st_mtime_ns, found.st_size), now

    def _last_beat(self) -> dict:
        return _last_line(self._path)

    def _alarm(self, silence_s: float, is_mute: bool) -> None:
        if self._alarmed is not None:
            return
        state = node_state.state(self._pid)
        if state in ("gone", "Z"):
            return
        self._alarmed = time.monotonic() - silence_s
        told = answer({"run_dir": str(self._run_dir), "processes": self._processes(), "is_full": True}, [])
        stack = told["stacks"].get(DRIVER, {})
        kind = _kind(state, is_mute, stack.get("holds_gil", False))
        where = f", in {stack['where']}" if stack.get("where") else ""
        host = socket.gethostname()
        sentence = f"{DRIVER}@{host} (pid {self._pid}) {kind.says} and has not moved for {silence_s:.0f} s{where}"
        files = {f"{host}/{name}": text for name, text in told["files"].items()}
        archive = pack(self._run_dir, {"alarm.txt": f"{sentence}\n-> {kind.fix}\n", **files})
        short = [*told["full_disks"], *([told["memory"]] if told["memory"] else [])]
        link = f"{TROUBLESHOOTING}#{kind.name}"
        self._say([f"alarm: {sentence}", *short, f"remedy: {kind.fix}", f"see: {link}", f"evidence: {archive}"])

    def _processes(self) -> dict[str, int]:
        """The run's processes on this host, as their own records name them."""
        beats = {path.stem: _last_line(path) for path in (self._run_dir / BOARD).glob("*.jsonl")}
        here = {name: beat for name, beat in beats.items() if beat.get("host") == socket.gethostname()}
        return {name.replace("-", "/"): beat["pid"] for name, beat in here.items()} | {DRIVER: self._pid}

    def _say(self, lines: list[str]) -> None:
        """Into the driver's log, and on its console; whoever has read it there finds it in the log."""
        text = "\n  ".join(lines)
        try:
            with (self._run_dir / LOGS / "driver-0.log").open("a", encoding="utf-8") as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} guard: {text}\n")
        except OSError as error:  # a full disk; the console has it
            text += f"\n  not written to the log: {error}"
        print(f"rlrun: {text}", file=sys.stderr, flush=True)


def _kind(state: str, is_mute: bool, holds_gil: bool) -> Trouble:
    if state in ("T", "t"):
        return trouble("stopped")
    if is_mute:
        return trouble("gil-held" if holds_gil else "mute")
    return trouble("no-progress")


def _last_line(path: Path) -> dict:
    """The last whole line of a file of JSON objects; {} where there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return {}


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
    watch = Watch(options.run_dir, options.pid, options.floor_s)
    while os.getppid() == options.pid:
        watch.look()
        time.sleep(_ROUND_S)


if __name__ == "__main__":
    main()
