"""The session of every command that starts workers: run folder, console, logs, watchdog and workers."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rlrun.config import provenance
from rlrun.config.recorded import CHECKPOINTS
from rlrun.config.schema import RunConfig
from rlrun.controller.controller import Controller
from rlrun.data import checkpoint_folder
from rlrun.observability.console import Console
from rlrun.observability.disk_speed import DiskSpeed
from rlrun.observability.metrics import MetricSinks
from rlrun.observability.run_files import PLAN, TIMELINE, close_worker_logs, open_worker_log
from rlrun.observability.timeline import TimelineWriter
from rlrun.observability.trends import MemoryGrowth
from rlrun.placement.plan import ROLES
from rlrun.system.errors import RUN_FOLDER_NOTE, RunError
from rlrun.system.run_lock import RunLock
from rlrun.system.status import Span
from rlrun.system.storage_error import storage_failure
from rlrun.system.telemetry import Telemetry
from rlrun.training.final_run import final_run
from rlrun.training.run_folder import RunFolder, archive_previous_run, refuse_trained
from rlrun.training.stop_signal import StopSignal
from rlrun.training.throughput import Throughput
from rlrun.watchdog.guard import Guard
from rlrun.watchdog.heartbeat import Heartbeat
from rlrun.watchdog.watchdog import Watchdog

if TYPE_CHECKING:
    from rlrun.cluster.launch import Machines
from rlrun.training.phases import Phases, Stopwatch
from rlrun.training.status_watcher import StatusWatcher

logger = logging.getLogger(__name__)
S = TypeVar("S", MetricSinks, TimelineWriter)


def resume_command(run_dir: Path, program: str = "rlrun.train") -> str:
    """Return the command. Example: "python -m rlrun.train resume=runs/cartpole/2026-01-31_12-00-00"."""
    trust = "" if provenance.can_mark() else " trust=true"
    return f"{shlex.quote(_interpreter())} -m {program} resume={shlex.quote(_near(run_dir))}{trust}"


def _interpreter() -> str:
    """Return "python" where that is the interpreter of this process, else its path."""
    python = shutil.which("python")
    return "python" if python and Path(python).absolute() == Path(sys.executable) else _near(Path(sys.executable))


def _near(path: Path) -> str:
    """Return a path relative to the working directory if it is below it, else an absolute one."""
    whole = path.absolute()
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(whole)


@dataclass(frozen=True, eq=False)
class Session:
    """Running workers, with everything that watches and records them."""

    run_dir: Path
    controller: Controller
    console: Console
    sinks: MetricSinks
    timeline: TimelineWriter
    disk: DiskSpeed
    watchdog: Watchdog
    stop: StopSignal
    phases: Phases
    driver: Telemetry
    folder: RunFolder
    throughput: Throughput
    memory: MemoryGrowth = field(default_factory=MemoryGrowth)
    resume_command: str = ""  # for a person's shell; "": the session cannot be resumed

    @property
    def config(self) -> RunConfig:
        """The configuration of the run, which is the controller's."""
        return self.controller.config

    def phase(self, name: str, counter: str | None = None, total: int = 0) -> AbstractContextManager[Stopwatch]:
        """See `Phases.phase`."""
        return self.phases.phase(name, counter, total)

    def progress(self) -> None:
        """Show the watchdog that a long task of the driver makes progress."""
        self.driver.count("checked_pieces")

    def flush_timeline(self) -> dict[str, list[Span]]:
        """Write the spans of every worker closed since the last call. Returns them by worker."""
        spans = self.controller.workers.spans() | {"driver/0": self.driver.drain_spans()}
        for worker, closed in spans.items():
            self.timeline.add(worker, closed)
        return spans


@contextmanager
def open_session(
    config: RunConfig,
    machines: Machines,
    roles: Sequence[str] = ROLES,
    resumed_by: str | None = None,
    is_evaluation: bool = False,
) -> Iterator[Session]:
    """Start workers of the given roles on `machines`. The session closes both at its end.

    config: as it was composed; `session.config` is that of the run, see `final_run`, which `is_evaluation` is for.

    resumed_by: the module that resumes the run, if it can be resumed; the caller then checks `stop` after every step.
    None: a signal ends the session at once. Raises RunError.

    Example::

        with open_session(config, Machines(config), ["env"]) as session:
            with session.phase("demos"):
                session.controller.load_simulators()
    """
    with ExitStack() as closing:
        closing.callback(machines.close)
        fitting = final_run(config, machines.inventory, roles, is_evaluation)  # a refusal creates no folder
        planned = fitting.plan
        config = fitting.config
        run_dir = Path(str(config.output_dir))
        if is_evaluation:
            refuse_trained(run_dir)
        driver = Telemetry("driver/0")
        console = Console(config, run_dir)
        lock = _locked(run_dir, console)
        closing.callback(lock.release)
        former = archive_previous_run(run_dir, config) if resumed_by is not None else None
        if checkpoint_folder.latest(run_dir / CHECKPOINTS) is None:  # else once the run has resumed, see `Run.start`
            provenance.write(config, run_dir)
        (run_dir / PLAN).write_text(planned.to_json())
        open_worker_log(run_dir, "driver/0", config.logging.verbosity)
        closing.callback(close_worker_logs)
        closing.enter_context(_logged_faults(run_dir))
        command = resume_command(run_dir, resumed_by) if resumed_by is not None else ""
        folder = RunFolder(run_dir, lambda place: resume_command(place, resumed_by) if resumed_by is not None else "")
        closing.callback(folder.close)
        if command:
            closing.enter_context(_resumable(folder, command, console))
        stop = closing.enter_context(StopSignal(defer=resumed_by is not None))
        _start_console(console, run_dir, machines, former, fitting.choices)
        closing.callback(console.stop)
        disk = DiskSpeed(run_dir, console.warning)
        sinks = closing.enter_context(_closed(MetricSinks(run_dir, config)))
        timeline = closing.enter_context(_closed(TimelineWriter(run_dir / TIMELINE)))
        watchdog = Watchdog(config, run_dir, driver, console.note, sinks.alert)
        if config.watchdog.enabled:
            _watch_driver(config, run_dir, driver, watchdog, command, closing)
        phases = Phases(driver, lock, console, watchdog)
        with phases.phase("doctor"):
            for warning in machines.preflight(fitting):
                console.note(f"doctor: {warning}")
        with phases.phase("start workers"):
            workers = machines.start(config, planned, roles, run_dir, watchdog, lambda: stop.is_requested)
            closing.callback(workers.close)
            controller = Controller(config, workers, console.note)
        session = Session(
            *(run_dir, controller, console, sinks, timeline, disk, watchdog, stop, phases, driver, folder),
            throughput=Throughput(fitting.work, planned),
            resume_command=command,
        )
        watchdog.report_budgets()
        closing.enter_context(_flushed(session))
        closing.callback(StatusWatcher(workers, driver, phases, console, watchdog, stop, session.memory).close)
        yield session


def _start_console(
    console: Console, run_dir: Path, machines: Machines, former: str | None, choices: Sequence[str]
) -> None:
    if not provenance.can_mark():
        console.note(f"{provenance.why_unmarked()}: resuming this run, or using its policy, will need trust=true")
    console.note(f"run folder: {run_dir}")
    for doubt in machines.inventory.doubts:
        console.warning(doubt)
    for remark in (*machines.remarks, *choices):
        console.note(remark)
    if former is not None:
        console.warning(former)
    console.start()


def _watch_driver(
    config: RunConfig, run_dir: Path, driver: Telemetry, watchdog: Watchdog, command: str, closing: ExitStack
) -> None:
    """Start the driver's heartbeat, and the process that alarms if it stops."""
    closing.callback(Heartbeat(driver, run_dir, config.watchdog.heartbeat_s).close)
    floor_s = config.watchdog.floor_s
    temp_dir = config.cluster.temp_dir
    closing.callback(Guard(run_dir, floor_s, watchdog.driver_limit_s, lambda: driver.phase, command, temp_dir).close)


def _locked(run_dir: Path, console: Console) -> RunLock:
    """Lock the run folder before anything is written to it. Raises RunError if another run has the lock."""
    lock = RunLock(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    lock.acquire(console.note)
    return lock


@contextmanager
def _logged_faults(run_dir: Path) -> Iterator[None]:
    """Write the traceback of an exception that rlrun does not expect into the log, and note the folder on it."""
    try:
        yield
    except (RunError, KeyboardInterrupt):
        raise
    except BaseException as error:
        logger.critical("an error that rlrun does not expect", exc_info=error)
        error.add_note(f"{RUN_FOLDER_NOTE}{run_dir}")
        raise


@contextmanager
def _resumable(folder: RunFolder, command: str, console: Console) -> Iterator[None]:
    """Add the command that resumes the run to an error that ends it, and print it if a person ends it."""
    try:
        yield
    except RunError as error:
        if error.resume is None:
            error.resume = folder.resume
        raise
    except (OSError, RuntimeError) as error:
        failure = folder.loss() or storage_failure(error, "The run", [str(folder.path)])
        if failure is None:
            raise
        failure.resume = failure.resume or folder.resume or (command if folder.place == folder.path else None)
        raise failure from error
    except KeyboardInterrupt:
        console.result(f"to resume: {command}")
        raise


@contextmanager
def _closed(sink: S) -> Iterator[S]:
    try:
        yield sink
    finally:
        with suppress(OSError):  # a full disk, which has been reported
            sink.close()


@contextmanager
def _flushed(session: Session) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(OSError):  # with a full disk, only these lines are lost
            session.flush_timeline()
