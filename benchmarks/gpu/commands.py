"""Commands that a row starts: with a time limit, and without children that outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


class CommandFailed(Exception):
    """A command ended with another status than 0, or not in time; the text has its last lines."""


class TooLate(CommandFailed):
    """A command had not ended in time."""


def output(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> str:
    """Run a command from the repository's root and return its stdout. Raises CommandFailed.

    environment: variables to set beside those of this process.
    """
    return "".join(lines(command, timeout_s, environment))


def lines(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the lines of a command's stdout as they come. Raises CommandFailed at its end."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            _kill(process)

        timer = threading.Timer(timeout_s, end)
        timer.start()
        last: list[str] = []
        try:
            for line in process.stdout or ():
                last = [*last, line][-3:]
                yield line
            process.wait(timeout=timeout_s)
        finally:
            timer.cancel()
            _kill(process)
            process.wait(timeout=10)
        if is_late.is_set():
            raise TooLate(f"{_named(command)} took longer than {timeout_s:g} s")
        if process.returncode:
            errors.seek(0)
            said = " / ".join(line.strip() for line in (errors.readlines()[-3:] or last))
            raise CommandFailed(f"{_named(command)} ended with status {process.returncode}: {said}")


def _kill(process: subprocess.Popen) -> None:
    """End the command, its own commands, which have sessions of their own, and what is left in its session."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _named(command: Sequence[str]) -> str:
    return " ".join(command[command.index("-m") + 1 :][:2]) if "-m" in command else command[0]
