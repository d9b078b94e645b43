"""Files in a run folder: their names, JSON lines that survive a killed writer, and the log file of each process."""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rlrun.config.schema import Verbosity
from rlrun.system.errors import CONFIG as CONFIG
from rlrun.system.errors import IndentingFormatter
from rlrun.system.local_files import parse_json
from rlrun.system.storage_error import is_storage_error

CONFIG_DIFF = "config_diff.yaml"
PLAN = "plan.json"
PROVENANCE = "provenance.json"
METRICS = "metrics.jsonl"
NOTES = "notes.jsonl"
EPISODES = "episodes.jsonl"
LOSSES = "losses.jsonl"
EVALUATIONS = "evaluations.jsonl"
STARTS = "starts.jsonl"
DATASET = "dataset.txt"  # the data set beside the world and the policy
WORLD = "world.json"
CERTIFICATIONS = "certifications.jsonl"  # in the folder of the run that trained the policy
TIMELINE = "timeline.json"
REPORT = "report.html"
VIDEOS = "videos"
LOGS = "logs"
BOARD = "board"
ALARMS = "alarms"
PROFILE = "profile"
FORMER = "former_"  # former_1, …: folders with the files of earlier runs, which a new run moved there
_LOG_LEVELS = {Verbosity.quiet: logging.INFO, Verbosity.normal: logging.INFO, Verbosity.debug: logging.DEBUG}
_NOISY_LOGGERS = (
    "matplotlib",
    "PIL",
    "urllib3",
    "asyncio",
    "filelock",
    "fsspec",
    "OpenGL",
    "git",
)  # only their warnings
_handlers: list[logging.StreamHandler] = []  # one at most per process


def num_former(run_dir: Path) -> int:
    """Return the number of the last folder of an earlier run that is set aside; 0: there is none."""
    numbers = [path.name.removeprefix(FORMER) for path in run_dir.glob(f"{FORMER}*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


class JsonLines:
    """Writer of JSON objects, one per line, flushed. It starts a new line after one that a killed writer left."""

    def __init__(self, path: Path):
        """path: in an existing folder; a deleted run folder must not be created again with a single file."""
        is_torn = path.exists() and _last_byte(path) not in (b"", b"\n")
        self._file = path.open("a", encoding="utf-8")
        if is_torn:
            self._file.write("\n")

    def write(self, record: dict[str, Any]) -> None:
        """Append `record`. Raises ValueError for a number that is not finite, which JSON cannot hold."""
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._file.close()


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 1))
        return file.read(1)


def read_json_lines(path: Path, holding: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of `path`, without the incomplete lines of killed writers; nothing if there is no file.

    holding: lines without this text are skipped before they are parsed.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if holding not in line:
                continue
            try:
                record = parse_json(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def last_object(lines: Sequence[str]) -> dict[str, Any] | None:
    """Return the last line that is a complete JSON object; None without one."""
    for line in reversed(lines):
        with suppress(ValueError):
            return parse_json(line)
    return None


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return one dict per training step, in order, without steps that a return to an earlier checkpoint made void."""
    by_step: dict[int, dict[str, Any]] = {}
    for record in without_void(read_json_lines(run_dir / METRICS)):
        by_step.setdefault(int(record["step"]), {}).update(record)
    return list(by_step.values())


def without_void(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records in order of steps: where a later one has a smaller step, the run returned to before it.

    What was recorded of that step and those after it is void.
    """
    valid: list[dict[str, Any]] = []
    for record in records:
        step = int(record["step"])
        if valid and step < int(valid[-1]["step"]):
            valid = [earlier for earlier in valid if int(earlier["step"]) < step]
        valid.append(record)
    return valid


class _LogFile(logging.StreamHandler[TextIO]):
    """Log handler that drops lines when the disk is full; the writers of checkpoints and metrics report that."""

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
    handler.setFormatter(IndentingFormatter(pattern, datefmt="%Y-%m-%d %H:%M:%S"))
    handler.setLevel(_LOG_LEVELS[verbosity])
    _handlers.append(handler)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(_LOG_LEVELS[verbosity])
    for name in _NOISY_LOGGERS:
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
