"""Says of an exception that rlrun does not expect whose code raised it, where the log is, and how to report it."""

from __future__ import annotations

import re
import shlex
import sys
import sysconfig
import traceback
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import NamedTuple

from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

RUN_FOLDER = "run folder: "  # begins the note that a session adds to an exception
_OWN = Path(__file__).resolve().parents[1]
_IN_TEXT = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)  # of an exception sent by a worker
_REPORTED = ("config.yaml", "provenance.json", "plan.json", "logs")


class Place(NamedTuple):
    """A line of code. Example: Place("/opt/lib/python3.11/site-packages/gym/core.py", 12, "step")."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}, in {self.function}"


def fault_report(error: BaseException) -> RunError:
    """Return the error to print after the traceback of an exception that rlrun does not expect."""
    places = _places(error)
    inner = next((place for place in reversed(places) if not _is_of_python(place)), places[-1] if places else None)
    own = next((place for place in reversed(places) if _is_own(place)), None)
    first = (str(error).strip().splitlines() or [""])[0]
    message = f"{type(error).__name__}: {first}" if first else type(error).__name__
    command, log = _command(error)
    where = f" The traceback is in {log} as well." if log else ""
    if inner is None or _is_own(inner):
        cause = f"rlrun itself raised it ({inner or 'no line is known'}): this is a fault of rlrun."
        remedy = f"Please report it: {command}"
    else:
        caller = f", called by {own}" if own is not None else ""
        cause = f"{_owner(inner.file)} raised it ({inner}{caller}), not rlrun."
        remedy = f"Look at what its message says. If rlrun called it wrongly, please report it: {command}"
    return RunError(
        f"An error that rlrun does not expect: {message}",
        cause=cause + where,
        remedy=remedy,
        exit_status=ExitStatus.unexpected,
    )


def _places(error: BaseException) -> list[Place]:
    """Return the lines from the program to the one that raised; those of a worker if its traceback is the message."""
    in_text = [Place(file, int(line), function) for file, line, function in _IN_TEXT.findall(str(error))]
    if in_text:
        return in_text
    frames = traceback.extract_tb(error.__traceback__)
    return [Place(frame.filename, frame.lineno or 0, frame.name) for frame in frames]


def _is_own(place: Place) -> bool:
    return Path(place.file).resolve().is_relative_to(_OWN)


def _is_of_python(place: Place) -> bool:
    """Return whether a line is of Python's own library, which raises what its caller is at fault for."""
    if place.file.startswith("<"):
        return True
    file = Path(place.file).resolve()
    folders = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    return any(file.is_relative_to(folder) for folder in folders) and "site-packages" not in file.parts


def _owner(file: str) -> str:
    """Name the package that a file belongs to, with its version; else the file. Example: "gymnasium 1.2.0"."""
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


def _command(error: BaseException) -> tuple[str, str]:
    """Return a command that packs what a report needs, without weights, and the path of the log; "" without a run."""
    notes = getattr(error, "__notes__", ())
    folder = next((Path(note.removeprefix(RUN_FOLDER)) for note in notes if note.startswith(RUN_FOLDER)), None)
    if folder is None:
        return "copy the lines above and the command that you ran", ""
    names = [name for name in _REPORTED if (folder / name).exists()]
    words = ["tar", "-czf", "rlrun_report.tar.gz", "-C", str(folder), *names]
    return f"{shlex.join(words)}, and the lines above", str(folder / "logs" / "driver-0.log")
