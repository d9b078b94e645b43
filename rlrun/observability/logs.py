"""One log file per worker, with its warnings, and with the stacks of its threads when a signal kills it."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from rlrun.config.schema import Verbosity
from rlrun.observability.run_files import LOGS
from rlrun.system.errors import HangingFormatter
from rlrun.system.storage_error import is_storage_error

LEVELS = {Verbosity.quiet: logging.INFO, Verbosity.normal: logging.INFO, Verbosity.debug: logging.DEBUG}
NOISY = ("matplotlib", "PIL", "urllib3", "asyncio", "filelock", "fsspec", "OpenGL", "git")  # only their warnings
_handlers: list[logging.StreamHandler] = []  # one at most per process


class _LogFile(logging.StreamHandler[TextIO]):
    """Drops lines without an error when the disk is full; the writers of checkpoints and metrics report that."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Handle an exception in `emit`."""
        if not is_storage_error(sys.exc_info()[1]):
            super().handleError(record)


def log_name(worker: str) -> str:
    """Return the stem of a worker's file names. Example: log_name("env/0") == "env-0"."""
    return worker.replace("/", "-")


def open_worker_log(run_dir: Path, worker: str, verbosity: Verbosity) -> Path:
    """Send this process's logging, warnings and fatal stacks to logs/<worker>.log. Returns the path.

    A process has one such file: if several workers share a process (cluster.kind=local), the file of the last call
    receives the lines of all.
    """
    close_worker_logs()
    path = Path(run_dir) / LOGS / f"{log_name(worker)}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    stream: TextIO = path.open("a", encoding="utf-8")
    handler = _LogFile(stream)
    pattern = f"%(asctime)s.%(msecs)03d {worker:<10} %(levelname)-7s %(name)s: %(message)s"
    handler.setFormatter(HangingFormatter(pattern, datefmt="%Y-%m-%d %H:%M:%S"))
    handler.setLevel(LEVELS[verbosity])
    _handlers.append(handler)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(LEVELS[verbosity])
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    faulthandler.enable(stream)
    faulthandler.register(signal.SIGUSR2, stream)  # the sentinel's way to get stacks where ptrace is denied
    return path


def open_log() -> Path | None:
    """Return the path of this process's log file; None if none is open."""
    return Path(_handlers[-1].stream.name) if _handlers else None


def close_worker_logs() -> None:
    """Close the log file that `open_worker_log` opened in this process."""
    while _handlers:
        handler = _handlers.pop()
        faulthandler.unregister(signal.SIGUSR2)
        faulthandler.disable()
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(handler)
        handler.close()
        with suppress(OSError):  # the disk did not take the last lines; the stream is closed all the same
            handler.stream.close()
