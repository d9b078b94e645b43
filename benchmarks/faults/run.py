"""A real training run as a child process, whose console is read with times and in which faults are ordered."""

from __future__ import annotations

import json
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

ALARM = (  # a line about something that went wrong
    r"process ended|what it held|failed:|late:|made anew|not there after|warning:|No space|rlrun\.train: |is lost"
    r"|alarm,"
)
FOREWARNING = (
    r"no progress for|has not answered|has not begun|on its way|s so far, usual"  # about what is only slow so far
    r"|main thread stands still for"
)
TOLD = f"{ALARM}|{FOREWARNING}"
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
    """`python -m rlrun.train` on the embedded world; its console lines come as (seconds since 1970, text)."""

    def __init__(
        self,
        folder: Path,
        *overrides: str,
        base: Sequence[str] = SMALL,
        orders: Mapping[str, str] | None = None,
        **environment: str,
    ):
        """base: the configuration that `overrides` change. orders: given before the run starts, call -> kind."""
        self.folder, self.orders, self.run_dir = folder, folder / "orders", folder / "run"
        self.orders.mkdir(parents=True)
        for call, kind in (orders or {}).items():
            self.order(call, kind)
        where = [f"output_dir={self.run_dir}", f"cache_dir={folder.parent}/cache"]
        self._command = [sys.executable, "-u", "-m", "rlrun.train", *base, *where, *overrides]
        path = os.pathsep.join([str(PLUG_IN), os.environ.get("PYTHONPATH", "")])
        self._environment = {**os.environ, "PYTHONPATH": path, "RLRUN_FAULTS": str(self.orders), **environment}
        self.watch(self.start(folder / "console.log"), folder / "console.log")

    def start(self, log: Path) -> subprocess.Popen:
        """The same command, in the same run folder; its console goes to `log`."""
        with log.open("ab") as console:
            return subprocess.Popen(
                self._command,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def start_again(self) -> None:
        """Kill it, with all that it started, and start it once more; what its console said stays known."""
        self.end()
        self._reader.join(timeout=5)
        log = self.folder / "console_again.log"
        self.watch(self.start(log), log, self.lines)

    def watch(self, process: subprocess.Popen, log: Path, lines: Sequence[tuple[float, str]] = ()) -> None:
        """Read the console from now on. lines: what was read before."""
        self.process, self.log, self.started_s = process, log, time.time()
        self.lines = list(lines)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self.log.open(errors="replace") as log:
            part = ""
            while True:
                is_over = self.process.poll() is not None
                part += log.read()
                *lines, part = part.split("\n")
                # what Ray says by itself names no worker
                self.lines += [(time.time(), line.rstrip()) for line in lines if not RAYS_OWN.match(line)]
                if is_over:
                    return
                time.sleep(0.05)

    def order(self, call: str, kind: str) -> None:
        """The worker and call, as "env-1.step_chunk", and what goes wrong there, once."""
        draft = self.orders / ".draft"
        draft.write_text(kind)
        draft.rename(self.orders / call)

    def struck_at(self, call: str, deadline_s: float) -> float:
        """When the order was obeyed. Raises TimeoutError."""
        struck = self.orders / f"{call}.struck"
        end = time.monotonic() + deadline_s
        while not struck.exists():
            if time.monotonic() > end or self.process.poll() is not None:
                raise TimeoutError(f"{call} was not reached")
            time.sleep(0.05)
        when = struck.stat().st_mtime
        struck.unlink()
        return when

    def first(self, pattern: str, since: float, deadline_s: float) -> tuple[float, str] | None:
        """The first console line that matches, after a time; None if the deadline passes or the run ends without."""
        end, seen = time.monotonic() + deadline_s, 0
        while True:
            is_over = self.process.poll() is not None
            if is_over:
                self._reader.join(timeout=5)
            for when, line in self.lines[seen:]:
                seen += 1
                if when >= since and re.search(pattern, line):
                    return when, line
            if is_over or time.monotonic() > end:
                return None
            time.sleep(0.1)

    @staticmethod
    def matches(pattern: str, text: str) -> bool:
        """Whether the text holds the pattern."""
        return re.search(pattern, text) is not None

    def steps(self) -> list[dict]:
        """Metrics of every logged step, as they were logged; none where the disk of the run folder fails."""
        try:
            return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        except OSError:  # or there is none yet
            return []

    def children(self, name: str) -> list[psutil.Process]:
        """Processes of the run whose name is that, such as "raylet"."""
        return [child for child in psutil.Process(self.process.pid).children(recursive=True) if child.name() == name]

    def watcher(self, name: str) -> psutil.Process:
        """The process of the run that runs `rlrun.watchdog.NAME`."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return next(child for child in below if f"rlrun.watchdog.{name}" in child.cmdline())

    def end(self) -> int:
        """End the run now, with everything it started; returns its exit status if it had ended by itself."""
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
