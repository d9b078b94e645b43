"""Standard output and error that never end a program.

Characters that they lack are replaced. A full disk, a reader that is gone or a closed terminal behind them stops the
output only.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, TextIO

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
