"""One log file per worker, with warnings, and a stack of every thread when a process dies of a signal."""

from __future__ import annotations

import faulthandler
import logging
from pathlib import Path
from typing import TextIO

from rlrun.config.schema import Verbosity
from rlrun.observability.run_files import LOGS

LEVELS = {Verbosity.quiet: logging.INFO, Verbosity.normal: logging.INFO, Verbosity.debug: logging.DEBUG}
NOISY = ("matplotlib", "PIL", "urllib3", "asyncio", "filelock", "fsspec", "OpenGL", "git")  # debug lines of others
_open: dict[str, tuple[logging.Handler, TextIO]] = {}  # by worker, in this process


def log_name(worker: str) -> str:
    """`env/0` -> `env-0`, the stem of its files."""
    return worker.replace("/", "-")


def open_worker_log(run_dir: Path, worker: str, verbosity: Verbosity) -> Path:
    """Send this process's logging to logs/<worker>.log; returns the file.

    In a process with several workers (cluster.kind=local) the file opened last gets the lines of all,
    named by the worker that this call was for, so call it once, for "local". Calling again for the
    same worker reopens its file. Fatal signals leave their stacks in logs/<worker>.faults.
    """
    folder = Path(run_dir) / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    close_worker_logs()
    path = folder / f"{log_name(worker)}.log"
    handler = logging.FileHandler(path, encoding="utf-8")
    pattern = f"%(asctime)s.%(msecs)03d {worker:<10} %(levelname)-7s %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(pattern, datefmt="%Y-%m-%d %H:%M:%S"))
    handler.setLevel(LEVELS[verbosity])
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(min(root.level or logging.WARNING, LEVELS[verbosity]))
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    faults = (folder / f"{log_name(worker)}.faults").open("a", encoding="utf-8")
    faulthandler.enable(faults)
    _open[worker] = (handler, faults)
    logging.getLogger(__name__).debug("log of %s opened", worker)
    return path


def close_worker_logs() -> None:
    """Detach and close what open_worker_log opened in this process."""
    for handler, faults in _open.values():
        logging.getLogger().removeHandler(handler)
        handler.close()
        faulthandler.disable()
        faults.close()
    _open.clear()
