"""Standard streams and signal handlers of this process."""

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

# A scheduler, systemd and `timeout` signal every process of a job, including Ray's, which would end before the run is
# saved. A session of its own would not protect them: systemd and SLURM signal all processes of a control group.
SHIELDED = (signal.SIGTERM, signal.SIGUSR1)


class PreemptedError(KeyboardInterrupt):
    """A scheduler's signal that ends this process now. Commands end with `ExitStatus.preempted`, not `interrupted`."""


@contextmanager
def signals_held(*numbers: signal.Signals) -> Iterator[None]:
    """Hold signals back from this thread inside the context, and for good from the processes that start in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signal_handlers_kept(*numbers: signal.Signals) -> Iterator[None]:
    """Restore the handlers of these signals at the end, also if C code has replaced them unseen by Python."""
    kept = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)


def put_back(previous: Mapping[signal.Signals, Any], is_ending: bool) -> None:
    """Restore the previous handlers.

    is_ending: a scheduler's signal is ending this process. SIGTERM and SIGUSR1 are then ignored, since the scheduler
    may repeat them, and a death by a signal would change the exit status.
    """
    for number, handler in previous.items():
        signal.signal(number, signal.SIG_IGN if is_ending and number != signal.SIGINT else handler)


def refuse_breakpoints(where: str) -> None:
    """Let `breakpoint()` raise RunError in this process from now on. where: the process. Example: "env/0"."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RunError(
            f"breakpoint() was called in {where}, which has no terminal.",
            cause="Workers on Ray, and simulators and engines in a process of their own, have no standard input.",
            remedy="Run everything in one process: add cluster.kind=local env.num_workers=1 rollout.num_workers=1 "
            "actor.num_workers=1 env.own_process=false. `py-spy dump --pid PID` shows a process without stopping it.",
        )

    sys.breakpointhook = refuse


_STDIN = 0  # the descriptor


@dataclass
class _Terminal:
    """Who reads the terminal of this process."""

    taken: tuple[Any, int | None] | None = None  # (sys.stdin, duplicate of the descriptor) while third-party code runs
    is_kept: bool = False  # a debugger reads it: nothing takes it away


_terminal = _Terminal()


@contextmanager
def empty_standard_input() -> Iterator[None]:
    """Give the code inside an empty standard input: `input()` raises EOFError, and child processes read nothing."""
    if _terminal.taken is not None or _terminal.is_kept:
        yield
        return
    _terminal.taken = sys.stdin, _put_aside()
    sys.stdin = _Empty()
    try:
        yield
    finally:
        _put_back()


def give_terminal_back() -> None:
    """Let third-party code read the terminal in this process from now on, for a debugger."""
    _terminal.is_kept = True
    _put_back()


def _put_aside() -> int | None:
    """Put /dev/null in the descriptor's place. Returns a duplicate of it; None: it is no standard input, or empty."""
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


def _put_back() -> None:
    if _terminal.taken is None:
        return
    (sys.stdin, duplicate), _terminal.taken = _terminal.taken, None
    if duplicate is not None:
        os.dup2(duplicate, _STDIN)
        os.close(duplicate)


class _Empty(io.TextIOBase):
    """An input that has ended. A debugger that reads it gets the terminal, as after `pdb.set_trace()`."""

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
        give_terminal_back()
        return sys.stdin.readline(size)


_VARIABLE = "PYTHONIOENCODING"


class LastingStream:
    """A text stream whose writes do not fail. Everything else is that of the stream inside.

    Example::

        sys.stdout = LastingStream(sys.stdout, "standard output")
    """

    def __init__(self, stream: TextIO, name: str):
        self._stream, self._name = stream, name
        self._is_lost = False

    def write(self, text: str) -> int:
        """Write, or drop the text if nothing takes it."""
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
        """Pass on what is buffered."""
        if not self._is_lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: Exception) -> None:
        """Send the rest to nowhere, and say so once, unless it is a reader such as `head` that has read enough."""
        self._is_lost = True
        with suppress(OSError, ValueError):  # else Python's own flush at the end fails again
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        if not isinstance(error, BrokenPipeError) and self._stream is not sys.__stderr__:
            with suppress(OSError, ValueError, AttributeError):
                print(f"{self._name} takes nothing more ({error}); the program goes on without it", file=sys.stderr)


def lasting(stream: TextIO | None, name: str = "standard output") -> Any:
    """Return the stream as one whose writes do not fail; None stays None, as for a closed descriptor."""
    return stream if stream is None or isinstance(stream, LastingStream) else LastingStream(stream, name)


def secure() -> None:
    """Make the output of this program last, and that of the Python programs it starts take every character."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure") and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("_", "-")
    if encoding not in ("utf-8", "utf8"):
        given = os.environ.get(_VARIABLE, "")
        if ":" not in given:  # the user chose no way to treat characters that the encoding lacks
            os.environ[_VARIABLE] = f"{given}:replace"
    sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr, "standard error")
