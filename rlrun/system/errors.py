"""RunError, the error type that users see, the exit statuses of all commands, and reports of unexpected errors.

Texts from simulators, workers, policies and data sets may hold control codes, which a terminal obeys: they retitle
windows, erase lines, and reverse the order of letters. Each edge where text leaves rlrun calls `escape_control` or
`indent` once: the console, errors, logs, metric sinks, the report.
"""

from __future__ import annotations

import logging
import re
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import NamedTuple

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")  # as Ray writes into the causes of failures
_CONTROL_CODES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad"  # C0 without tab and newline, DEL, C1, soft hyphen
    "\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # line ends, marks, directions
    "\ud800-\udfff\U000e0000-\U000e007f]"  # halves of characters, which no file takes; tags
)
TROUBLESHOOTING = "docs/troubleshooting.md"
OUT_OF_MEMORY = "out-of-memory"  # kind of the errors of workers whose accelerator is full
RUN_FOLDER_NOTE = "run folder: "  # prefix of the note that a session adds to an exception
_RLRUN_FOLDER = Path(__file__).resolve().parents[1]
_TRACEBACK_LINE = re.compile(
    r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE
)  # of an exception sent by a worker
CONFIG = "config.yaml"  # of a run folder
_REPORT_FILES = (CONFIG, "provenance.json", "plan.json", "logs")


class ExitStatus(IntEnum):
    """Statuses that schedulers and scripts may rely on; `meaning` is the text in the documents."""

    meaning: str

    def __new__(cls, status: int, meaning: str = "") -> ExitStatus:
        member = int.__new__(cls, status)
        member._value_ = status
        member.meaning = meaning
        return member

    ok = 0, "done"
    unexpected = (
        1,
        "an error that rlrun does not expect: the traceback is printed, then whose code raised it",
    )
    bad_config = 2, "the configuration was refused; nothing was started"
    placement = 3, "the plan cannot be met by the machines; the shortfall is printed"
    doctor = 4, "the doctor found a fault that would stop the run"
    bad_input = 5, "a checkpoint or dataset is missing, corrupted or of other shapes"
    storage = 6, "the run folder cannot be written, for example a full disk; the last checkpoint is valid"
    worker_lost = 7, "a worker, node or simulator was lost more often than the limits allow"
    stalled = 8, "a wait passed its deadline; the culprit and the evidence archive are named"
    diverged = 9, "learning produced only non-finite gradients"
    differs = 10, "a replay had other results than the recorded run; a published success rate did not come out"
    uncounted = 11, "the plan cannot say whether the run fits, since its policy could not be counted"
    preempted = (
        75,
        "stopped by a signal after a checkpoint, or at once by a scheduler's second signal; the last lines have the "
        "command that resumes the run",
    )
    interrupted = 130, "stopped at once, without a checkpoint, by a second Ctrl-C, or by one before the first step"


def markdown_table() -> str:
    """Return the table for docs/reference/exit_statuses.md."""
    rows = [f"| {status.value} | `{status.name}` | {status.meaning} |" for status in ExitStatus]
    return "\n".join(["| status | name | meaning |", "|---|---|---|", *rows])


def escape_control(text: str) -> str:
    r"""Return `text` without colours, and with every other control code spelled out; newlines and tabs stay.

    Example: ESC becomes the four characters "\x1b".
    """
    return _CONTROL_CODES.sub(lambda found: _escape(ord(found.group())), _COLOUR.sub("", text).replace("\r\n", "\n"))


def indent(text: str, width: int = 2) -> str:
    """Return an escaped text with its later lines indented, so that none of them looks like a line of rlrun."""
    return escape_control(text).replace("\n", "\n" + " " * width)


class IndentingFormatter(logging.Formatter):
    """Log formatter that escapes control codes and indents the later lines of a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return indent(super().format(record))


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class RunError(Exception):
    """An error that rlrun expects; commands print it as a short block, without a traceback.

    message: what is wrong, in one sentence. key, value: the configuration key at fault, if there is one. cause: why
    it is an error. remedy: what to do. worker: the worker at fault, as "env/1", if there is one. row: the id of the
    row in docs/troubleshooting.md that says more, for an alarm or a check of the doctor. kind: a name by which its
    callers tell a failure from others, if they have to. resume: the command that resumes the run which it ended. It can
    be pickled, so that workers may raise it.

    Example::

        raise RunError("Six envs cannot be shared by four workers.", key="env.num_envs", value=6,
                       remedy="Take a multiple of env.num_workers: 4 or 8.")
    """

    def __init__(
        self,
        message: str,
        key: str | None = None,
        value: object = None,
        cause: str | None = None,
        remedy: str | None = None,
        exit_status: ExitStatus = ExitStatus.bad_config,
        worker: str | None = None,
        row: str | None = None,
        kind: str | None = None,
    ):
        super().__init__(message, key, value, cause, remedy, exit_status, worker)
        self.message = message
        self.key = key
        self.value = value
        self.cause = cause
        self.remedy = remedy
        self.exit_status = exit_status
        self.worker = worker
        self.row = row
        self.kind = kind
        self.resume: str | None = None

    @property
    def link(self) -> str | None:
        """The link to the row of the troubleshooting page; None without a row."""
        return f"{TROUBLESHOOTING}#{self.row}" if self.row else None

    def __str__(self) -> str:
        value = self.value if self.value is None or isinstance(self.value, str) else repr(self.value)
        if isinstance(self.value, bool):
            value = repr(self.value).lower()  # as YAML has it
        rows = [("key", self.key), ("value", value), ("cause", self.cause), ("remedy", self.remedy)]
        rows += [("resume", self.resume), ("see", self.link)]
        lines = [indent(self.message)]
        for label, text in rows:
            if text is not None:
                lines.append(f"  {label + ':':<8}{indent(text, 10)}")
        return "\n".join(lines)


class RunErrors(RunError):
    """Several errors that one pass found, printed together. The exit status is that of the first."""

    def __init__(self, errors: list[RunError]):
        super().__init__(f"{len(errors)} faults in the configuration.", exit_status=errors[0].exit_status)
        self.args = (errors,)
        self.errors = errors

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)


class CodeLine(NamedTuple):
    """A line of code. Example: Place("/opt/lib/python3.11/site-packages/gym/core.py", 12, "step")."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}, in {self.function}"


def fault_report(error: BaseException) -> RunError:
    """Return the error to print after the traceback of an exception that rlrun does not expect."""
    places = _traceback_lines(error)
    inner = next((place for place in reversed(places) if not _is_of_python(place)), places[-1] if places else None)
    innermost = next((place for place in reversed(places) if _is_of_rlrun(place)), None)
    first = (str(error).strip().splitlines() or [""])[0]
    message = f"{type(error).__name__}: {first}" if first else type(error).__name__
    command, log = _report_command(error)
    where = f" The traceback is in {log} as well." if log else ""
    if inner is None or _is_of_rlrun(inner):
        cause = f"rlrun itself raised it ({inner or 'no line is known'}): this is a fault of rlrun."
        remedy = f"Please report it: {command}"
    else:
        caller = f", called by {innermost}" if innermost is not None else ""
        cause = f"{_package_name(inner.file)} raised it ({inner}{caller}), not rlrun."
        remedy = f"Look at what its message says. If rlrun called it wrongly, please report it: {command}"
    return RunError(
        f"An error that rlrun does not expect: {message}",
        cause=cause + where,
        remedy=remedy,
        exit_status=ExitStatus.unexpected,
    )


def _traceback_lines(error: BaseException) -> list[CodeLine]:
    """Return the lines of a traceback, outermost first; a worker's, if its traceback is in the message."""
    in_text = [CodeLine(file, int(line), function) for file, line, function in _TRACEBACK_LINE.findall(str(error))]
    if in_text:
        return in_text
    frames = traceback.extract_tb(error.__traceback__)
    return [CodeLine(frame.filename, frame.lineno or 0, frame.name) for frame in frames]


def _is_of_rlrun(place: CodeLine) -> bool:
    return Path(place.file).resolve().is_relative_to(_RLRUN_FOLDER)


def _is_of_python(place: CodeLine) -> bool:
    """Return whether a line is in Python's standard library, where the caller is usually at fault."""
    if place.file.startswith("<"):
        return True
    file = Path(place.file).resolve()
    folders = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    return any(file.is_relative_to(folder) for folder in folders) and "site-packages" not in file.parts


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that caused it, each once: the chains of OmegaConf under a debugger are circles."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _package_name(file: str) -> str:
    """Return name and version of the package that a file belongs to, else its module. Example: "gymnasium 1.2.0"."""
    roots = [Path(entry).resolve() for entry in sys.path if entry]
    path = Path(file).resolve()
    inside = [path.relative_to(root) for root in roots if path.is_relative_to(root)]
    module = min(inside, key=lambda part: len(part.parts)).parts[0].removesuffix(".py") if inside else path.stem
    for distribution in packages_distributions().get(module, ()):
        try:
            return f"{distribution} {version(distribution)}"
        except PackageNotFoundError:
            continue
    return f"the module {module}"


def _report_command(error: BaseException) -> tuple[str, str]:
    """Return the command that packs the files of a bug report, and the path of the log; "" without a run."""
    notes = getattr(error, "__notes__", ())
    folder = next(
        (Path(note.removeprefix(RUN_FOLDER_NOTE)) for note in notes if note.startswith(RUN_FOLDER_NOTE)), None
    )
    if folder is None:
        return "copy the lines above and the command that you ran", ""
    names = [name for name in _REPORT_FILES if (folder / name).exists()]
    words = ["tar", "-czf", "rlrun_report.tar.gz", "-C", str(folder), *names]
    return f"{shlex.join(words)}, and the lines above", str(folder / "logs" / "driver-0.log")
