"""Console of a run: a live view in a terminal, plain lines elsewhere; and the debugger for `breakpoint()`."""

from __future__ import annotations

import atexit
import bdb
import inspect
import logging
import os
import pdb
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console as Terminal
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from rlrun.config.schema import RunConfig, Verbosity
from rlrun.observability.dashboard import STARTUP_PHASES, Dashboard, GpuSampler
from rlrun.observability.step_line import duration, step_line
from rlrun.system.errors import indent
from rlrun.system.process_io import lasting_stream, release_terminal
from rlrun.system.status import WorkerStatus

logger = logging.getLogger(__name__)
REFRESH_HZ = 4
PLAIN_PERIOD_S = 10.0  # interval of progress lines without a terminal


class Debugger(pdb.Pdb):
    """Python's debugger. Quitting raises KeyboardInterrupt: BdbQuit would look like a fault of the running code."""

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Handle an event of the traced program."""
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            sys.settrace(None)
            raise KeyboardInterrupt from None


def open_debugger(frame: FrameType | None) -> None:
    """Stop in `frame`. The variable PYTHONBREAKPOINT names another debugger, as it does for Python."""
    release_terminal()  # third-party code has an empty standard input otherwise
    if os.environ.get("PYTHONBREAKPOINT"):
        sys.__breakpointhook__()
        return
    print("breakpoint: c continues without the live view, q ends the run", flush=True)
    Debugger(nosigint=True).set_trace(frame)


logger.addHandler(logging.NullHandler())  # else warnings without a log file are printed twice


class _WarningHandler(logging.Handler):
    """Log handler that prints the driver's warnings, which would otherwise be in its log file only."""

    def __init__(self, console: Console):
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "is_shown", False):
            self._console._print(f"warning: {record.getMessage()}", "yellow")


class Console:
    """Output of a run's progress; thread-safe.

    `logging.verbosity`: quiet shows results and warnings only, normal shows the live view or plain lines, debug adds
    every metric of a step. Everything also goes to the log file.

    Example::

        with Console(config, run_dir) as console:
            console.progress("collecting", 3, 16)
            console.step(1, {"success_rate": 0.4})
    """

    def __init__(self, config: RunConfig, run_dir: Path, is_terminal: bool | None = None):
        self._config = config
        self._lock = threading.Lock()
        output = lasting_stream(sys.stdout)
        self._terminal = Terminal(file=output, force_terminal=is_terminal, highlight=False)
        if not self._terminal.is_terminal:
            self._terminal = Terminal(file=output, highlight=False, soft_wrap=True)  # lines in a file are not wrapped
        self._dashboard = Dashboard(config, Path(run_dir))
        self._gpus = GpuSampler()
        self._warnings = _WarningHandler(self)
        self._live: Live | None = None
        self._hook_before: Callable[..., Any] | None = None  # sys.breakpointhook before `start`
        self._printed_s = 0.0  # monotonic time of the last plain line
        self._finished: set[str] = set()  # phases whose end was printed

    @property
    def _is_quiet(self) -> bool:
        return self._config.logging.verbosity is Verbosity.quiet

    def start(self) -> None:
        """Start the output. `stop` restores the terminal, and so does the end of the process."""
        logging.getLogger("rlrun").addHandler(self._warnings)
        self._hook_before = sys.breakpointhook
        sys.breakpointhook = self._on_breakpoint
        if self._is_quiet or not self._terminal.is_terminal or self._terminal.is_dumb_terminal:
            return
        self._gpus.start()
        atexit.register(self.stop)
        self._live = Live(
            get_renderable=self._picture,
            console=self._terminal,
            refresh_per_second=REFRESH_HZ,
            transient=True,
            vertical_overflow="ellipsis",
        )
        self._live.start()

    def stop(self) -> None:
        """Restore the terminal. Safe to call twice."""
        logging.getLogger("rlrun").removeHandler(self._warnings)
        if self._hook_before is not None:
            sys.breakpointhook = self._hook_before
            self._hook_before = None
        self._end_live()

    def _on_breakpoint(self, *_: Any, **__: Any) -> None:
        """Open the debugger for `breakpoint()`, without a live view that would repaint its prompt."""
        self._end_live()
        here = inspect.currentframe()
        open_debugger(None if here is None else here.f_back)

    def _end_live(self) -> None:
        live = self._live
        self._live = None
        if live is None:
            return
        self._gpus.stop()
        atexit.unregister(self.stop)
        try:
            live.stop()
        finally:
            self._terminal.show_cursor(True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def workers(self, statuses: list[WorkerStatus], expectations: Mapping[str, str] | None = None) -> None:
        """Show the state of every worker; called about once a second.

        expectations: by worker, the usual and the longest time of its phase.
        Example: {"env/0": "usual 8.2 s, alarm 41 s"}.
        """
        with self._lock:
            self._dashboard.set_workers(statuses, expectations or {})

    def begin(self, phase: str, total: int) -> None:
        """Start a phase of `total` units; its time counts from now."""
        with self._lock:
            self._dashboard.set_progress(phase, 0, total)

    def progress(self, phase: str, done: int, total: int) -> None:
        """Show that `done` of `total` units of a phase are done: demos, sft, collecting, updating, syncing, …"""
        with self._lock:
            elapsed_s = self._dashboard.set_progress(phase, done, total)
        if phase in STARTUP_PHASES and done >= total and phase not in self._finished:
            self._finished.add(phase)
            self.note(f"{phase}: {total} in {duration(elapsed_s)}")
        elif self._is_quiet or self._live is not None:
            return
        elif time.monotonic() - self._printed_s >= PLAIN_PERIOD_S:
            self._print(f"{phase} {done}/{total} ({duration(elapsed_s)})", style="dim")

    def step(self, step: int, metrics: Mapping[str, float], logged: Mapping[str, float] = {}) -> None:
        """Print the line of a finished training step, above the live view. logged: numbers of callbacks."""
        with self._lock:
            self._dashboard.set_step(step, metrics)
        line = step_line(step, self._config.num_steps, metrics, logged)
        if not self._is_quiet:
            self._print(line)  # before the log: its disk may hang
        logger.info("%s", line)
        if self._is_quiet:
            return
        if self._config.logging.verbosity is Verbosity.debug:
            self._print(
                "  " + "  ".join(f"{name}={value:.5g}" for name, value in sorted({**metrics, **logged}.items())), "dim"
            )

    def note(self, text: str) -> None:
        """Print a note on the progress of the run, except if quiet."""
        if not self._is_quiet:
            self._print(text, "cyan")
        logger.info("%s", text)  # last: the disk of the log may hang, and the text may be about that

    def result(self, text: str) -> None:
        """Print the result of the run, at every verbosity."""
        self._print(text, "bold green")
        logger.info("%s", text)

    def warning(self, text: str) -> None:
        """Print a warning, at every verbosity."""
        self._print(f"warning: {text}", "yellow")
        logger.warning("%s", text, extra={"is_shown": True})

    def _picture(self) -> RenderableType:
        with self._lock:
            self._dashboard.set_gpus(None, self._gpus.latest())
            return self._dashboard.picture(self._terminal.size)

    def _print(self, text: str, style: str = "") -> None:
        self._printed_s = time.monotonic()
        self._terminal.print(Text(indent(text), style=style))
