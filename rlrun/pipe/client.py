"""RPC client in the worker: every call has a deadline, and every failure raises a specific exception."""

from __future__ import annotations

import builtins
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlrun.pipe.process import ChildProcess
from rlrun.pipe.wire import WireError

logger = logging.getLogger(__name__)

CLOSE_S = 10.0  # limit for the server to close by itself
MESSAGE_S = 60.0  # limit from the first byte of a message to its last
LOOK_S = 1.0  # interval between looks at the output for signs of progress while the server loads
LOADING = ("start", "make")  # calls during which output extends the deadline


@dataclass(frozen=True)
class Deadline:
    """The longest time without an answer or progress. Example: Deadline(600, "env.load_deadline_s")."""

    seconds: float
    key: str  # configuration key, for messages


class RpcClient:
    """Calls the server in `process`, one call at a time.

    Raises `fault` if the process crashes, sends garbage or misses a deadline: then its whole process group has been
    killed, and only `close` may still be called. Exceptions of the server are raised here with the same type if it is
    a builtin or RunError, else as `fault`.
    """

    def __init__(self, process: ChildProcess, noun: str, fault: type[Exception], progress: Callable[[], None]):
        """noun: name of the child process in messages, such as "simulator". progress: called at signs of progress."""
        self._process: ChildProcess | None = process
        self._noun, self._fault, self._progress = noun, fault, progress

    def handshake(self, deadline: Deadline) -> dict[str, Any]:
        """Receive the server's first message: its interpreter, versions and process id."""
        about = self._receive("handshake", "start", deadline)
        words = "%(executable)s, Python %(python)s, numpy %(numpy)s, process %(pid)d"
        logger.info(f"{self._noun} in {words}", about)
        self._progress()
        return about

    def call(self, name: str, deadline: Deadline, **arguments: Any) -> Any:
        """Call `name` and return its answer. Raises RuntimeError if the client is closed."""
        if self._process is None:
            raise RuntimeError(f"this {self._noun} is closed")
        try:
            self._process.channel.send({"call": name, "arguments": arguments}, deadline.seconds)
        except WireError as error:
            raise self._broken(name, error) from error
        return self._receive("answer", name, deadline)

    def close(self) -> None:
        """Ask the server to close, then kill its process group."""
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
        """Receive the answer to call `name`; signs of progress restart the deadline."""
        assert self._process is not None
        is_loading = name in LOADING
        since = time.monotonic()
        while True:
            left = max(0.0, since + deadline.seconds - time.monotonic())
            if not self._process.channel.has_message(min(left, LOOK_S) if is_loading else left):
                if is_loading and self._process.last_output > since:  # output while loading is progress
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
        causes = self._process.diagnosis()
        self._end()
        return self._fault(
            f"{name}: no answer and no progress for {deadline.seconds:g} s ({deadline.key}); the {self._noun} was "
            f"killed, its stacks are in this worker's log{causes}"
        )

    def _broken(self, name: str, error: WireError) -> Exception:
        assert self._process is not None
        text = self._process.end_text()
        self._end()
        return self._fault(f"{name}: {error}; {text}")

    def _raised(self, sent: dict[str, Any]) -> Exception:
        """Return the exception that the server sent."""
        logger.debug("traceback in the %s:\n%s", self._noun, sent["traceback"])
        if sent.get("run_error"):
            return sent["run_error"]
        error: Exception = getattr(builtins, sent["kind"], self._fault)(sent["text"])
        error.add_note(f"In the {self._noun}:\n{sent['traceback']}")  # shown with this process's traceback
        return error
