"""One log file per worker, with warnings, and the stacks of all threads when a process dies of a signal."""

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
from rlrun.system.storage_error import is_storage_error

LEVELS = {Verbosity.quiet: logging.INFO, Verbosity.normal: logging.INFO, Verbosity.debug: logging.DEBUG}
NOISY = ("matplotlib", "PIL", "urllib3", "asyncio", "filelock", "fsspec", "OpenGL", "git")  # debug lines of others
_handlers: list[logging.StreamHandler] = []  # of this process; one at most


class _LogFile(logging.StreamHandler[TextIO]):
    """Loses its lines, and says nothing of it, where the disk takes no more: whoever writes what matters tells that."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Called by `emit` for any exception."""
        if not is_storage_error(sys.exc_info()[1]):
            super().handleError(record)


def log_name(worker: str) -> str:
    """`env/0` -> `env-0`, the stem of its files."""
    return worker.replace("/", "-")


def open_worker_log(run_dir: Path, worker: str, verbosity: Verbosity) -> Path:
    """Send this process's logging, warnings and fatal stacks to logs/<worker>.log; returns the file.

    A process has one such file: where several workers share it (cluster.kind=local), that of the last
    call takes the lines of all.
    """
    close_worker_logs()
    path = Path(run_dir) / LOGS / f"{log_name(worker)}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    stream: TextIO = path.open("a", encoding="utf-8")
    handler = _LogFile(stream)
    pattern = f"%(asctime)s.%(msecs)03d {worker:<10} %(levelname)-7s %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(pattern, datefmt="%Y-%m-%d %H:%M:%S"))
    handler.setLevel(LEVELS[verbosity])
    _handlers.append(handler)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(LEVELS[verbosity])
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    faulthandler.enable(stream)
    faulthandler.register(signal.SIGUSR2, stream)  # how the sentinel gets stacks where ptrace is denied
    return path


def close_worker_logs() -> None:
    """Detach and close what open_worker_log opened in this process."""
    while _handlers:
        handler = _handlers.pop()
        faulthandler.unregister(signal.SIGUSR2)
        faulthandler.disable()
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(handler)
        handler.close()
        with suppress(OSError):  # lines that the disk did not take; the stream is closed all the same
            handler.stream.close()
