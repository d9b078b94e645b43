"""RPC client in the worker, and the child process that it calls.

The child has its own interpreter and process group: its output is logged, and it is killed as a group. Every call has a
deadline, and every failure raises a specific exception.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from rlrun.pipe import bootstrap
from rlrun.pipe.output import Output
from rlrun.pipe.wire import Arena, Channel, WireError
from rlrun.system.errors import ExitStatus, RunError

logger = logging.getLogger(__name__)

_TRAINER_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")  # would break another interpreter
_NUM_LAST_LINES = 400
_EXIT_WAIT_S = 5.0  # limit for a killed group to end
_STACKS_WAIT_S = 0.5  # time for the interpreter to write its stacks
_CLOSE_WAIT_S = 10.0  # limit for the server to close by itself
_MESSAGE_TIMEOUT_S = 60.0  # limit from the first byte of a message to its last
_PROGRESS_POLL_S = 1.0  # interval of checks for output while the server loads
_LOADING_CALLS = ("start", "make")  # calls during which output extends the deadline


@dataclass(frozen=True)
class ChildSpec:
    """Server module of a child process, and texts for messages about it.

    Example: ChildSpec("simulator", "rlrun.envs.remote_server", "placement.nodes", "`python:` of the group names it")
    """

    noun: str
    module: str  # module of rlrun; its `serve` takes the three file descriptors
    python_key: str  # the configuration key that names the interpreter
    python_remedy: str
    is_worker_writing_arena: bool = False  # True: large arrays go to the child; False: they come from it
    paths: tuple[str, ...] = ()  # folders added to PYTHONPATH of the child and its children


class ChildProcess:
    """A child process, started by the constructor. `channel` connects to its server."""

    def __init__(self, python: str, spec: ChildSpec, output: Output):
        """Start the process. Raises RunError if `python` cannot be started."""
        mine, its = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        arena = Arena(os.memfd_create("rlrun"))
        descriptors = (its.fileno(), arena.fd, lifeline)
        command = [python, bootstrap.__file__, *map(str, descriptors), spec.module]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its own process group, which gets no Ctrl-C
                env=child_environment(python, spec.paths),
            )
        except OSError as error:
            os.close(self._lifeline)
            mine.close()
            arena.close()
            raise _interpreter_error(python, spec, error) from error
        finally:
            its.close()
            os.close(lifeline)
        self.python = python
        self.channel = Channel(mine, arena, is_writing_arena=spec.is_worker_writing_arena)
        self._connection = mine
        self._arena = arena
        self._output = output
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self.last_output = time.monotonic()
        self._reader = threading.Thread(target=self._read, name=f"output of {self._process.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        """Log every line of output; keep the last ones for the message about the end of the process."""
        assert self._process.stdout is not None
        pending = b""
        while block := os.read(self._process.stdout.fileno(), 1 << 16):
            self.last_output = time.monotonic()
            *lines, pending = (pending + block).replace(b"\r\n", b"\n").split(b"\n")
            pending = pending[-(1 << 16) :]
            for line in lines:
                text = line.rsplit(b"\r")[-1].decode(errors="replace").rstrip()  # last state of a progress bar
                if text:
                    self._last_lines.append(text)
                    self._output.log_line(text)
        self._process.stdout.close()

    def write_stacks(self) -> None:
        """Make the interpreter write the stacks of its threads to its output, which goes to the log."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR2)
            time.sleep(_STACKS_WAIT_S)

    def describe_end(self) -> str:
        """Describe the end of the process, with its last line and known causes. Waits up to 5 s for the end."""
        try:
            status = self._process.wait(timeout=_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return f"process {self.pid} still runs"
        self._reader.join(timeout=_EXIT_WAIT_S)
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        lines = list(takewhile(lambda line: not line.startswith("Fatal Python error"), self._last_lines))
        last = lines[-1] if lines else "nothing"  # without the stacks that Python adds; they are in the log
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
        if errors and errors[-1] != last:  # libraries print messages of their cleanup after the error
            last += f"; its last error: {errors[-1]}"
        return f"process {self.pid} ended with {how}; its last line: {last}{self.diagnosis()}"

    def diagnosis(self) -> str:
        """Return the known causes in the output so far, as lines to append to a message; "" if there are none."""
        return "".join(f"\n{text}" for text in self._output.causes)

    def kill(self) -> None:
        """Kill the process group. May be called again."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_EXIT_WAIT_S)
        self._reader.join(timeout=_EXIT_WAIT_S)
        self._connection.close()
        self._arena.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def child_environment(python: str, paths: tuple[str, ...] = ()) -> dict[str, str]:
    """Return this worker's environment; without variables of the trainer's interpreter if `python` is another one."""
    environment = dict(os.environ)
    if Path(python).resolve() != Path(sys.executable).resolve() or _interpreter_folder(python) != _interpreter_folder(
        sys.executable
    ):
        for name in _TRAINER_VARIABLES:
            environment.pop(name, None)
    environment["PYTHONUNBUFFERED"] = "1"
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [environment.get("PYTHONPATH")])])
    return environment


def _interpreter_folder(python: str) -> Path:
    """Return the folder of an interpreter: virtual environments that link to one binary differ in it."""
    return Path(python).absolute().parent


def _interpreter_error(python: str, spec: ChildSpec, error: OSError) -> RunError:
    return RunError(
        f"The {spec.noun}'s interpreter cannot be started: {python}",
        key=spec.python_key,
        value=python,
        cause=str(error),
        remedy=spec.python_remedy,
        exit_status=ExitStatus.placement,
    )


@dataclass(frozen=True)
class Deadline:
    """The longest time without an answer or progress. Example: Deadline(600, "env.load_deadline_s")."""

    seconds: float
    key: str  # configuration key, for messages


class RpcClient:
    """Client of the server in `process`, with one call at a time.

    Raises `fault` if the process crashes, sends an invalid message or misses a deadline: its process group has then
    been killed, and only `close` may still be called. Exceptions of the server are raised here with the same type if it
    is a builtin or RunError, else as `fault`.
    """

    def __init__(self, process: ChildProcess, noun: str, fault: type[Exception], progress: Callable[[], None]):
        """noun: name of the child process in messages, such as "simulator". progress: called at signs of progress."""
        self._process: ChildProcess | None = process
        self._noun = noun
        self._fault = fault
        self._progress = progress

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
            raise self._connection_fault(name, error) from error
        return self._receive("answer", name, deadline)

    def close(self) -> None:
        """Ask the server to close, then kill its process group."""
        if self._process is None:
            return
        with contextlib.suppress(WireError):
            self._process.channel.send({"call": "close"}, _CLOSE_WAIT_S)
            self._process.channel.receive(_CLOSE_WAIT_S)
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _receive(self, wanted: str, name: str, deadline: Deadline) -> Any:
        """Receive the answer to call `name`. Progress messages, and output while loading, restart the deadline."""
        assert self._process is not None
        is_loading = name in _LOADING_CALLS
        since = time.monotonic()
        while True:
            left = max(0.0, since + deadline.seconds - time.monotonic())
            if not self._process.channel.has_message(min(left, _PROGRESS_POLL_S) if is_loading else left):
                if is_loading and self._process.last_output > since:  # output while loading is progress
                    since = time.monotonic()
                    self._progress()
                elif time.monotonic() - since >= deadline.seconds:
                    raise self._timeout_fault(name, deadline)
                continue
            try:
                message = self._process.channel.receive(_MESSAGE_TIMEOUT_S)
            except WireError as error:
                raise self._connection_fault(name, error) from error
            if "progress" in message:
                since = time.monotonic()
                self._progress()
            elif "error" in message:
                raise self._server_exception(message["error"])
            elif wanted in message:
                return message[wanted]
            else:
                raise self._connection_fault(name, WireError(f"the answer holds {', '.join(message)}"))

    def _timeout_fault(self, name: str, deadline: Deadline) -> Exception:
        assert self._process is not None
        self._process.write_stacks()
        causes = self._process.diagnosis()
        self._end()
        return self._fault(
            f"{name}: no answer and no progress for {deadline.seconds:g} s ({deadline.key}); the {self._noun} was "
            f"killed, its stacks are in this worker's log{causes}"
        )

    def _connection_fault(self, name: str, error: WireError) -> Exception:
        assert self._process is not None
        text = self._process.describe_end()
        self._end()
        return self._fault(f"{name}: {error}; {text}")

    def _server_exception(self, sent: dict[str, Any]) -> Exception:
        """Return the exception that the server sent."""
        logger.debug("traceback in the %s:\n%s", self._noun, sent["traceback"])
        if sent.get("run_error"):
            return sent["run_error"]
        error: Exception = getattr(builtins, sent["kind"], self._fault)(sent["text"])
        error.add_note(f"In the {self._noun}:\n{sent['traceback']}")  # shown with this process's traceback
        return error
