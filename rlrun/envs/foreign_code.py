"""Third-party code of simulators: what would end the process, or wait for a person, is one sentence instead."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.process_io import empty_standard_input

log = logging.getLogger(__name__)


@contextmanager
def simulator_code() -> Iterator[None]:
    """Run third-party code with an empty standard input. Raises RunError if it asks a question or ends the process."""
    with empty_standard_input(), questions_told():
        try:
            yield
        except SystemExit as end:
            raise RunError(
                f"The simulator ended the process: {end.code}",
                key="env.simulator",
                cause=f"It called sys.exit in {_place(end)}.",
                remedy="Repair what it says; `python -m rlrun.check_simulator` with the same arguments repeats it.",
                exit_status=ExitStatus.bad_input,
            ) from end


@contextmanager
def questions_told() -> Iterator[None]:
    """Raise RunError if third-party code asks a question; it gets no answer, since its standard input is empty."""
    try:
        yield
    except EOFError as error:
        question = _question(error)
        if question is None:
            raise
        raise question from error


def _question(error: EOFError) -> RunError | None:
    """Return what to tell of the question that `input()` asked; None: another file or connection has ended."""
    frames = traceback.extract_tb(error.__traceback__)
    asked = [frame for frame in frames if "input(" in (frame.line or "")]
    if not asked or "reading a line" not in str(error):
        return None
    return RunError(
        f"The simulator asked a question: {asked[-1].line}",
        key="env.simulator",
        cause=f"{asked[-1].filename}:{asked[-1].lineno} waits for an answer, and simulators have no standard input.",
        remedy="Run that code once by hand and answer, or set what it asks for by its variable or its file.",
        exit_status=ExitStatus.bad_input,
    )


def close_or_warn(close: Callable[[], object], what: str) -> None:
    """Close a part of a simulator; a failure is a warning in the log."""
    try:
        close()
    except (Exception, SystemExit) as failure:  # third-party code may raise anything
        log.warning("%s did not close: %s: %s", what, type(failure).__name__, failure, exc_info=failure)


def last_lines(error: BaseException, limit: int) -> str:
    """Return the end of an error's traceback."""
    return "\n".join("".join(traceback.format_exception(error)).rstrip().splitlines()[-limit:])


def _place(error: BaseException) -> str:
    """Return where an error was raised. Example: "world.py:12"."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "its code"
