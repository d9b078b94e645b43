"""Heartbeat of a process: its status in a file of the run folder, which remains as evidence when Ray itself hangs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rlrun.observability.run_files import BOARD, JsonLines, log_name
from rlrun.system.status import WorkerStatus
from rlrun.system.storage_error import is_storage_error
from rlrun.system.telemetry import Telemetry

logger = logging.getLogger(__name__)

_OWN = Path(__file__).parents[1]
MAX_BYTES = 4 * 1024 * 1024  # then the file becomes the ".1" of a new one


class Heartbeat:
    """Thread that appends the worker's status to board/<worker>.jsonl, and records when another thread dies.

    The thread needs the GIL: if its lines end while the process is alive, the GIL is held or the process is stopped.
    """

    def __init__(self, telemetry: Telemetry, run_dir: Path, heartbeat_s: float):
        self._telemetry = telemetry
        self._path = Path(run_dir) / BOARD / f"{log_name(telemetry.worker)}.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._period_s = heartbeat_s
        self._is_over = threading.Event()
        self._hook: Callable = threading.excepthook
        threading.excepthook = self._record_failure
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write a last line and stop. Safe to call twice."""
        self._is_over.set()
        self._thread.join(timeout=2.0)
        threading.excepthook = self._hook

    def _run(self) -> None:
        lines = JsonLines(self._path)
        try:
            while True:
                lines.write(status_record(self._telemetry.status()))
                if self._path.stat().st_size > MAX_BYTES:
                    lines.close()
                    self._path.replace(self._path.with_suffix(".jsonl.1"))
                    lines = JsonLines(self._path)
                if self._is_over.wait(self._period_s):
                    return
        except OSError as error:  # a full disk must not end the run; the driver's board goes on
            is_gone = isinstance(error, FileNotFoundError)  # the run itself reports a removed folder
            level = logging.INFO if is_gone else logging.WARNING
            logger.log(level, "no more lines in %s: %s", self._path, error)
        finally:
            with contextlib.suppress(OSError):
                lines.close()

    def _record_failure(self, failed: threading.ExceptHookArgs) -> None:
        name = failed.thread.name if failed.thread else "?"
        if is_storage_error(failed.exc_value):  # e.g. of an event file: its next writer reports the error
            logger.warning("thread %s ended: %s", name, failed.exc_value)
            return
        text = "".join(traceback.format_exception(failed.exc_type, failed.exc_value, failed.exc_traceback))
        if self._telemetry.worker.startswith("driver/") and not _is_of_rlrun(failed.exc_traceback):
            logger.warning("thread %s ended, which a callback or a library had started: %s", name, text)
            return
        self._telemetry.fail(f"thread {name}:\n{text}")
        logger.error("thread %s died: %s", name, text)
        self._hook(failed)


def _is_of_rlrun(trace: TracebackType | None) -> bool:
    """Return whether the function of a thread is one of rlrun, by the first frame outside the module threading."""
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace))
    first = next((file for file in files if file != threading.__file__), "")
    return Path(first).is_relative_to(_OWN)


def status_record(status: WorkerStatus) -> dict:
    """Return one line of the file.

    Example: {"time_s": 1763740000.0, "phase": "simulate", "silence_s": 0.1, "counters": {…}, …}.
    """
    return {
        "time_s": round(time.time(), 3),
        "host": status.host,
        "pid": status.pid,
        "phase": status.phase,
        "phase_age_s": round(status.phase_age_s, 2),
        "silence_s": round(status.silence_s, 2),
        "counters": status.counters,
        "waits": [dataclasses.asdict(wait) for wait in status.waits],
        "host_memory_bytes": status.host_memory_bytes,
    }
