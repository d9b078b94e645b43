"""The worker's end of the pipe: every call has a deadline, every failure a name."""

from __future__ import annotations

import builtins
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlrun.pipe.process import OwnProcess
from rlrun.pipe.wire import WireClosed, WireError

logger = logging.getLogger(__name__)

CLOSE_S = 10.0  # for the other end to close by itself
MESSAGE_S = 60.0  # from the first byte of a message to its last
LOOK_S = 1.0  # how often the output is looked at for signs of progress, while loading
LOADING = ("start", "make")  # calls in which output and progress messages count as life


@dataclass(frozen=True)
class Deadline:
    """How long a call may be silent. Example: Deadline(600, "env.load_deadline_s")."""

    seconds: float
    key: str  # what sets it; messages name it


class Calls:
    """Asks the server in `process`, one call at a time.

    Raises `fault` when the process crashes, sends garbage or stays silent for too long: then its whole process
    group has been killed, and only `close` may still be called. What the other end itself raises comes through as
    the same type, where it is one of Python's or ours, else as `fault`.
    """

    def __init__(self, process: OwnProcess, noun: str, fault: type[Exception], progress: Callable[[], None]):
        """noun: "simulator", for messages."""
        self._process: OwnProcess | None = process
        self._noun, self._fault, self._progress = noun, fault, progress

    def hello(self, deadline: Deadline) -> dict[str, Any]:
        """What the other end says of itself when it has started."""
        about = self._receive("hello", "start", deadline)
        words = "%(executable)s, Python %(python)s, numpy %(numpy)s, process %(pid)d"
        logger.info(f"{self._noun} in {words}", about)
        self._progress()
        return about

    def call(self, name: str, deadline: Deadline, **arguments: Any) -> Any:
        """The answer to `name`. Raises RuntimeError after the end."""
        if self._process is None:
            raise RuntimeError(f"this {self._noun} is closed")
        try:
            self._process.channel.send({"call": name, "arguments": arguments}, deadline.seconds)
        except WireError as error:
            raise self._broken(name, error) from error
        return self._receive("answer", name, deadline)

    def look(self, name: str, deadline: Deadline) -> None:
        """Between questions by another way than the pipe: raises `fault` where the process has ended, or has printed
        nothing for so long."""
        if self._process is None:
            raise RuntimeError(f"this {self._noun} is closed")
        if not self._process.is_running:
            raise self._broken(name, WireClosed("the process has ended"))
        if time.monotonic() - self._process.last_output > deadline.seconds:
            raise self._silent(name, deadline)
        self._progress()

    def close(self) -> None:
        """Ask the other end to close, then end its process group."""
        if self._process is None:
            return
        with contextlib.suppress(WireError):
            self._process.channel.send({"call": "close"}, CLOSE_S)
            self._process.channel.receive(CLOSE_S)
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _receive(self, wanted: str, name: str, deadline: Deadline) -> Any:
        """The answer to call `name`; signs of progress before it start the deadline anew."""
        assert self._process is not None
        is_loading = name in LOADING
        since = time.monotonic()
        while True:
            left = max(0.0, since + deadline.seconds - time.monotonic())
            if not self._process.channel.has_message(min(left, LOOK_S) if is_loading else left):
                if is_loading and self._process.last_output > since:  # who boots says what it loads
                    since = time.monotonic()
                    self._progress()
                elif time.monotonic() - since >= deadline.seconds:
                    raise self._silent(name, deadline)
                continue
            try:
                message = self._process.channel.receive(MESSAGE_S)
            except WireError as error:
                raise self._broken(name, error) from error
            if "progress" in message:
                since = time.monotonic()
                self._progress()
            elif "error" in message:
                raise self._raised(message["error"])
            elif wanted in message:
                return message[wanted]
            else:
                raise self._broken(name, WireError(f"the answer holds {', '.join(message)}"))

    def _silent(self, name: str, deadline: Deadline) -> Exception:
        assert self._process is not None
        self._process.write_stacks()
        told = self._process.diagnosis()
        self._end()
        return self._fault(
            f"{name}: no answer and no progress for {deadline.seconds:g} s ({deadline.key}); the {self._noun} was "
            f"killed, its stacks are in this worker's log{told}"
        )

    def _broken(self, name: str, error: WireError) -> Exception:
        assert self._process is not None
        text = self._process.end_text()
        self._end()
        return self._fault(f"{name}: {error}; {text}")

    def _raised(self, told: dict[str, Any]) -> Exception:
        """The exception that the other end told of."""
        logger.debug("the other end's own traceback:\n%s", told["traceback"])
        return told.get("run_error") or getattr(builtins, told["kind"], self._fault)(told["text"])
