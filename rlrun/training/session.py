"""What every entry point that starts workers opens: run folder, console, logs, workers; and closes again."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from rlrun.cluster.fitness import require_fitness
from rlrun.cluster.launch import Machines
from rlrun.config import provenance
from rlrun.config.schema import RunConfig
from rlrun.config.sealing import seal
from rlrun.controller.controller import Controller
from rlrun.data.messages import Span
from rlrun.observability.counter_totals import CounterTotals
from rlrun.observability.disk_speed import DiskSpeed
from rlrun.observability.live.console import Console
from rlrun.observability.logs import close_worker_logs, open_worker_log
from rlrun.observability.metrics import MetricSinks
from rlrun.observability.run_files import PLAN, TIMELINE
from rlrun.observability.telemetry import Telemetry
from rlrun.observability.timeline import BusyShares, TimelineWriter
from rlrun.placement.budget import budget
from rlrun.placement.plan import Plan
from rlrun.placement.planner import plan
from rlrun.placement.request import ROLES
from rlrun.system.run_lock import RunLock
from rlrun.training.stop_signal import StopSignal
from rlrun.watchdog.guard import Guard
from rlrun.watchdog.heartbeat import Heartbeat
from rlrun.watchdog.watchdog import Watchdog

_POLL_S = 1.0
_SHARE_OF_ASKING = 0.1  # of the driver's time goes at most into asking all workers what they do, however many they are


def with_run_folder(config: RunConfig) -> RunConfig:
    """The configuration with an absolute `output_dir`: the given one, or a new folder runs/<name>/<time>."""
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(config.output_dir or Path("runs") / config.name / now).absolute()
    located = dataclasses.replace(config, output_dir=str(folder))
    seal(located)
    return located


class Session:
    """Workers of the given roles and everything that watches them.

    Example::

        with Session(config, ["env"]) as session:
            with session.phase("demos"):
                session.controller.load_simulators()
    """

    def __init__(self, config: RunConfig, roles: Sequence[str] = ROLES, is_patient: bool = False):
        """is_patient: the caller looks at `stop` after every step; else a signal ends the session at once."""
        self._machines = Machines(config)
        self.plan = self._planned(config)  # a refusal leaves no folder behind
        self.config = with_run_folder(config)
        self.run_dir = Path(self.config.output_dir)
        self.stop = StopSignal(is_patient)
        self._is_stop_told = False
        self._roles = roles
        self.later: Sequence[str] = ()  # roles that the caller launches; set before the session is entered
        self._driver = Telemetry("driver/0")
        self._counters = CounterTotals()
        self.busy = BusyShares(self.flush_timeline)
        self._goal: tuple[str, str, int, int] | None = None  # phase, counter "role/name", start, total

    def __enter__(self) -> Session:
        self.console = Console(self.config, self.run_dir)
        self._lock_folder()
        provenance.write(self.config, self.run_dir)
        (self.run_dir / PLAN).write_text(self.plan.to_json())
        open_worker_log(self.run_dir, "driver/0", self.config.logging.verbosity)
        self.stop.__enter__()
        self.console.note(f"run folder: {self.run_dir}")
        self.console.start()
        self.disk = DiskSpeed(self.run_dir, self.console.warning)
        self.sinks = MetricSinks(self.run_dir, self.config)
        self.timeline = TimelineWriter(self.run_dir / TIMELINE)
        self.watchdog = Watchdog(self.config, self.run_dir, self._driver, self.console.note, self.sinks.alert)
        if self.config.watchdog.enabled:
            settings = self.config.watchdog
            self._heartbeat = Heartbeat(self._driver, self.run_dir, settings.heartbeat_s)
            self._guard = Guard(self.run_dir, settings.floor_s, self.watchdog.driver_limit_s)
        try:
            with self.phase("doctor"):
                for warning in require_fitness(self.config, self._machines):
                    self.console.note(f"doctor: {warning}")
            with self.phase("start workers"):
                processes = self._machines.start(
                    self.config,
                    self.plan,
                    self._roles,
                    self.run_dir,
                    self.watchdog,
                    lambda: self.stop.is_requested,
                    self.later,
                )
                self.controller = Controller(self.config, processes, self.console.note)
        except BaseException:
            self._machines.close()
            self._close_watchers()
            raise
        self.watchdog.report_budgets()
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._watcher.join(timeout=10 * _POLL_S)
        try:
            with suppress(OSError):  # a full disk, which has been told, or cost these lines only
                self.flush_timeline()
        finally:
            self.controller.processes.close()
            self._close_watchers()

    def _lock_folder(self) -> None:
        """Before anything is written to it. Raises RunError where another run writes there."""
        self._lock = RunLock(self.run_dir)
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(self.console.note)
        except BaseException:
            self._machines.close()
            raise

    def _planned(self, config: RunConfig) -> Plan:
        try:
            planned = plan(config, self._machines.inventory)
            budget(config, planned, self._machines.inventory)
        except BaseException:
            self._machines.close()
            raise
        return planned

    def _close_watchers(self) -> None:
        try:
            if self.config.watchdog.enabled:
                self._guard.close()
                self._heartbeat.close()
            for close in (self.timeline.close, self.sinks.close):
                with suppress(OSError):
                    close()
            self.console.stop()
            self.stop.__exit__()
            close_worker_logs()
        finally:
            self._lock.release()

    @contextmanager
    def phase(self, name: str, counter: str | None = None, total: int = 0) -> Iterator[Stopwatch]:
        """Show and time what the run does now.

        counter: "env/chunk_steps", summed over a role's workers, or "actor/0/imitation_steps", of one worker, tells
        the progress towards `total`, from what it was when the workers were last looked at. Raises RunError where
        another run has taken the run folder over.
        """
        self._lock.require()
        watch, num_disturbances = Stopwatch(), self.watchdog.num_disturbances
        if counter is not None:
            self.console.begin(name, total)
            self._goal = (name, counter, self._counters.total(counter), total)
        try:
            with self._driver.span(name):
                yield watch
        finally:
            watch.seconds = time.monotonic() - watch.start
            self._goal = None
        self.watchdog.learn_phase(name, watch.seconds, num_disturbances)
        if counter is not None:
            self.console.progress(name, total, total)

    def progress(self) -> None:
        """Tell who guards the driver that its work goes on."""
        self._driver.count("checked_pieces")

    def flush_timeline(self) -> dict[str, list[Span]]:
        """Ask every worker for its spans closed since the last call, and write them; returns them by worker."""
        spans = self.controller.processes.spans() | {"driver/0": self._driver.drain_spans()}
        for worker, closed in spans.items():
            self.timeline.add(worker, closed)
        return spans

    def tell_stop(self) -> None:
        """Say, once, what a signal has begun: the watcher does, or who acts upon the signal before it looks."""
        if self.stop.is_requested and self.stop.is_patient and not self._is_stop_told:
            self._is_stop_told = True
            self.console.note(f"{self.stop.name}: ending after this step, with a checkpoint; again to end now")

    def _watch(self) -> None:
        took_s = 0.0
        while not self._is_over.wait(max(_POLL_S, took_s / _SHARE_OF_ASKING)):
            began = time.thread_time()  # waiting for a worker that does not answer is none of it
            self.tell_stop()
            statuses, goal = self.controller.processes.statuses(), self._goal
            self._counters.put(statuses)
            self.console.workers([self._driver.status(), *statuses], self.watchdog.expectations())
            if goal is not None:
                phase, counter, start, total = goal
                self.console.progress(phase, min(total, self._counters.total(counter) - start), total)
            took_s = time.thread_time() - began


class Stopwatch:
    """Seconds that a phase took, once it is over."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.seconds = 0.0
