"""Standard input of third-party code: empty, so that its questions fail at once, until a debugger needs the terminal.

A process of its own gets /dev/null. In the driver's process the terminal is taken away while such code runs.
"""

from __future__ import annotations

import bdb
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import currentframe
from typing import Any

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
