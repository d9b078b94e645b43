"""Signal handlers, breakpoints, standard input and standard output of this process.

Third-party code gets an empty standard input, so that its prompts fail at once, until a debugger needs the terminal.
Standard output and error never end a program: characters that their encoding lacks are replaced, and a full disk, a
reader that ended or a closed terminal only stops the output.
"""

from __future__ import annotations

import bdb
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import currentframe
from typing import Any, NoReturn, TextIO

from rlrun.system.errors import RunError

# Blocked in Ray's processes. A scheduler, systemd and `timeout` signal every process of a job, and Ray would end before
# the run is saved. A separate session does not help: systemd and SLURM signal all processes of a control group.
SHIELDED_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_STDIN = 0  # the descriptor
_ENCODING_VARIABLE = "PYTHONIOENCODING"


class PreemptedError(KeyboardInterrupt):
    """A scheduler's signal ends this process now. Commands exit with `ExitStatus.preempted`, not `interrupted`."""


@contextmanager
def signals_held(*numbers: signal.Signals) -> Iterator[None]:
    """Block signals in this thread inside the context, and permanently in the processes that start in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signal_handlers_kept(*numbers: signal.Signals) -> Iterator[None]:
    """Restore the handlers of these signals at the end, also if C code replaced them without Python's knowledge."""
    kept = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)


def restore_signal_handlers(previous: Mapping[signal.Signals, Any], is_ending: bool) -> None:
    """Restore the previous handlers.

    is_ending: a scheduler's signal is ending this process. SIGTERM and SIGUSR1 are then ignored, since the scheduler
    may repeat them, and death by a signal would change the exit status.
    """
    for number, handler in previous.items():
        signal.signal(number, signal.SIG_IGN if is_ending and number != signal.SIGINT else handler)


def refuse_breakpoints(where: str) -> None:
    """Make `breakpoint()` raise RunError in this process, which has no terminal. where: its name, such as "env/0"."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RunError(
            f"breakpoint() was called in {where}, which has no terminal.",
            cause="Workers on Ray, and simulators and engines in a process of their own, have no standard input.",
            remedy="Run everything in one process: add cluster.kind=local env.num_workers=1 rollout.num_workers=1 "
            "actor.num_workers=1 env.own_process=false. `py-spy dump --pid PID` shows a process without stopping it.",
        )

    sys.breakpointhook = refuse


@dataclass
class _Terminal:
    """State of this process's standard input."""

    taken: tuple[Any, int | None] | None = None  # (sys.stdin, duplicate of the descriptor) while third-party code runs
    is_kept: bool = False  # a debugger reads it, so that it is not replaced any more


_terminal = _Terminal()


@contextmanager
def empty_standard_input() -> Iterator[None]:
    """Replace standard input by an empty one: `input()` raises EOFError, and child processes read nothing."""
    if _terminal.taken is not None or _terminal.is_kept:
        yield
        return
    _terminal.taken = sys.stdin, _replace_stdin()
    sys.stdin = _EmptyInput()
    try:
        yield
    finally:
        _restore_stdin()


def release_terminal() -> None:
    """Restore standard input for a debugger; `empty_standard_input` has no effect in this process afterwards."""
    _terminal.is_kept = True
    _restore_stdin()


def _replace_stdin() -> int | None:
    """Replace the descriptor by /dev/null. Returns its duplicate; None: it is no standard input, or already empty."""
    with open(os.devnull) as nothing:
        try:
            is_input = sys.__stdin__ is not None and sys.__stdin__.fileno() == _STDIN
            if not is_input or os.fstat(_STDIN).st_rdev == os.fstat(nothing.fileno()).st_rdev:
                return None
            duplicate = os.dup(_STDIN)
        except (OSError, ValueError):  # it is closed
            return None
        os.dup2(nothing.fileno(), _STDIN)
    return duplicate


def _restore_stdin() -> None:
    if _terminal.taken is None:
        return
    (sys.stdin, duplicate) = _terminal.taken
    _terminal.taken = None
    if duplicate is not None:
        os.dup2(duplicate, _STDIN)
        os.close(duplicate)


class _EmptyInput(io.TextIOBase):
    """An input at end of file. A debugger that reads it gets the terminal, as after `pdb.set_trace()`."""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return _STDIN  # /dev/null while this object is sys.stdin

    def read(self, size: int | None = -1, /) -> str:
        return ""

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        frame = currentframe()
        while frame is not None and frame.f_code.co_filename != bdb.__file__:
            frame = frame.f_back
        if frame is None:
            return ""
        release_terminal()
        return sys.stdin.readline(size)


class LastingStream:
    """A text stream whose writes do not fail. All other attributes are those of the wrapped stream.

    Example::

        sys.stdout = LastingStream(sys.stdout, "standard output")
    """

    def __init__(self, stream: TextIO, name: str):
        self._stream = stream
        self._name = name
        self._is_lost = False

    def write(self, text: str) -> int:
        """Write the text, or drop it after the stream has failed."""
        if not self._is_lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                self._lose(error)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each of the lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream."""
        if not self._is_lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: Exception) -> None:
        """Redirect the rest to /dev/null, with one warning unless a reader such as `head` has closed the pipe."""
        self._is_lost = True
        with suppress(OSError, ValueError):  # else Python's own flush at the end fails again
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        if not isinstance(error, BrokenPipeError) and self._stream is not sys.__stderr__:
            with suppress(OSError, ValueError, AttributeError):
                print(f"{self._name} takes nothing more ({error}); the program goes on without it", file=sys.stderr)


def lasting_stream(stream: TextIO | None, name: str = "standard output") -> Any:
    """Wrap a stream in `LastingStream`; None, as for a closed descriptor, stays None."""
    return stream if stream is None or isinstance(stream, LastingStream) else LastingStream(stream, name)


def protect_standard_streams() -> None:
    """Wrap standard output and error, and let Python programs that start here replace characters they cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure") and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("_", "-")
    if encoding not in ("utf-8", "utf8"):
        given = os.environ.get(_ENCODING_VARIABLE, "")
        if ":" not in given:  # the user set no error handler
            os.environ[_ENCODING_VARIABLE] = f"{given}:replace"
    sys.stdout = lasting_stream(sys.stdout)
    sys.stderr = lasting_stream(sys.stderr, "standard error")
