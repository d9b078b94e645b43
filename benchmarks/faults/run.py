"""A real training run as a child process, with the times of its console lines, and with triggers for faults."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from rlrun.observability.run_files import METRICS, read_json_lines

ALARM = (  # a line about a failure
    r"process ended|it held is lost|failed:|late:|restarted|not there after|warning:|No space|rlrun\.train: |is lost"
    r"|alarm,|ended without closing the run|SIGTERM: "
)
WARNING = (  # a line about something that is slow so far
    r"no progress for|has not answered|has not begun|on its way|s so far, usual"
    r"|main thread has been blocked for|has not started for|in 60 s \("
)
REPORTED = f"{ALARM}|{WARNING}"
LAST_WORDS_S = 5.0  # after the end of a run, for those of its guard
RAYS_OWN = re.compile(r"(\x1b\[\d+m)?\(raylet")
PLUG_IN = Path(__file__).parent / "plug_in"
SMALL = (
    "run=debug",
    "num_steps=100000",
    "env.num_workers=2",
    "env.num_envs=4",
    "actor.num_workers=2",
    "algorithm.horizon=6",
    "checkpoint.every_steps=1",
    "evaluation.num_episodes=2",
    "logging.tensorboard=false",
    "logging.video_episodes=0",
    "env.restart_limit=100",
    "recovery.max_env_restarts=100",
    "recovery.max_rollout_restarts=100",
    "recovery.max_actor_restarts=100",
)


class Run:
    """`python -m rlrun.train` on the embedded world; `lines` are its console lines as (seconds since 1970, text)."""

    def __init__(
        self,
        folder: Path,
        *overrides: str,
        base: Sequence[str] = SMALL,
        triggers: Mapping[str, str] | None = None,
        **environment: str,
    ):
        """base: the configuration that `overrides` change. triggers: call -> kind, set before the run starts."""
        self.folder, self.triggers, self.run_dir = folder, folder / "triggers", folder / "run"
        self.triggers.mkdir(parents=True)
        for call, kind in (triggers or {}).items():
            self.trigger(call, kind)
        where = [f"output_dir={self.run_dir}", f"cache_dir={folder.parent}/cache"]
        self._command = [sys.executable, "-u", "-m", "rlrun.train", *base, *where, *overrides]
        path = os.pathsep.join([str(PLUG_IN), os.environ.get("PYTHONPATH", "")])
        self._environment = {**os.environ, "PYTHONPATH": path, "RLRUN_FAULTS": str(self.triggers), **environment}
        self.watch(self.start(folder / "console.log"), folder / "console.log")

    def start(self, log: Path) -> subprocess.Popen:
        """Start the command in the run folder, with its console in `log`. Returns the process."""
        with log.open("ab") as console:
            return subprocess.Popen(
                self._command,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def start_again(self) -> None:
        """End the run with its child processes, and start it again; `lines` continues."""
        self.end()
        self._reader.join(timeout=2 * LAST_WORDS_S)
        log = self.folder / "console_again.log"
        self.watch(self.start(log), log, self.lines)

    def resume(self, *overrides: str) -> None:
        """End the run, and resume it by its folder, as a person does; `lines` continues."""
        self._command = [sys.executable, "-u", "-m", "rlrun.train", f"resume={self.run_dir}", *overrides]
        self.start_again()

    def watch(self, process: subprocess.Popen, log: Path, lines: Sequence[tuple[float, str]] = ()) -> None:
        """Start reading the console of a process. lines: the lines read before."""
        self.process, self.log, self.started_s = process, log, time.time()
        self.lines = list(lines)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self.log.open(errors="replace") as log:
            part = ""
            ended_s: float | None = None
            while True:
                is_over = self.process.poll() is not None
                ended_s = time.monotonic() if is_over and ended_s is None else ended_s
                part += log.read()
                *lines, part = part.split("\n")
                # Ray's own lines name no worker
                self.lines += [(time.time(), line.rstrip()) for line in lines if not RAYS_OWN.match(line)]
                if ended_s is not None and time.monotonic() > ended_s + LAST_WORDS_S:
                    return
                time.sleep(0.05)

    def trigger(self, call: str, kind: str) -> None:
        """Trigger a fault of `kind` once, at the worker and call `call`, as "env-1.step_chunk"."""
        draft = self.triggers / ".draft"
        draft.write_text(kind)
        draft.rename(self.triggers / call)

    def injected_at(self, call: str, deadline_s: float) -> float:
        """Return when the fault was injected, in seconds since 1970. Raises TimeoutError."""
        done = self.triggers / f"{call}.done"
        end = time.monotonic() + deadline_s
        while not done.exists():
            if time.monotonic() > end or self.process.poll() is not None:
                raise TimeoutError(f"{call} was not reached")
            time.sleep(0.05)
        when = done.stat().st_mtime
        done.unlink()
        return when

    def first(self, pattern: str, since: float, deadline_s: float) -> tuple[float, str] | None:
        """Return the first line after a time that matches; None if there is none before the deadline or the end."""
        end, seen = time.monotonic() + deadline_s, 0
        while True:
            is_over = self.process.poll() is not None
            if is_over:
                self._reader.join(timeout=2 * LAST_WORDS_S)
            for when, line in self.lines[seen:]:
                seen += 1
                if when >= since and re.search(pattern, line):
                    return when, line
            if is_over or time.monotonic() > end:
                return None
            time.sleep(0.1)

    @staticmethod
    def matches(pattern: str, text: str) -> bool:
        """Return whether the text contains the pattern."""
        return re.search(pattern, text) is not None

    def steps(self) -> list[dict]:
        """Return the metrics of every logged step; [] if the disk of the run folder fails."""
        try:
            return list(read_json_lines(self.run_dir / METRICS))  # a full disk leaves half a line
        except OSError:  # also if there is no file yet
            return []

    def children(self, name: str) -> list[psutil.Process]:
        """Return the processes of the run with a name, such as "raylet"."""
        return [child for child in psutil.Process(self.process.pid).children(recursive=True) if child.name() == name]

    def watcher(self, name: str) -> psutil.Process:
        """Return the process of the run that runs `rlrun.watchdog.NAME`."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return next(child for child in below if f"rlrun.watchdog.{name}" in child.cmdline())

    def end(self) -> int:
        """End the run with its child processes. Returns its exit status if it had ended by itself."""
        status = self.process.poll()
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                time.sleep(0.5)
                self._wait(5 if number == signal.SIGINT else 20)
        for process in below:
            if process.is_running():
                process.kill()
        return status if status is not None else self.process.returncode

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
