"""RPC client in the worker: every call has a deadline, and every failure raises a specific exception."""

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

TRAINER_ONLY = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")  # would break another interpreter
LAST_LINES = 400
END_S = 5.0  # limit for a killed group to end
STACKS_S = 0.5  # time for the interpreter to write its stacks


@dataclass(frozen=True)
class ChildSpec:
    """What runs in a child process, and words for messages about it.

    Example: ChildSpec("simulator", "rlrun.envs.remote_server", "placement.nodes", "`python:` of the group names it")
    """

    noun: str
    module: str  # module of rlrun; its `serve` takes the three file descriptors
    python_key: str  # the configuration key that names the interpreter
    python_remedy: str
    is_worker_writing_arena: bool = False  # True: large arrays go to the child; False: they come from it
    paths: tuple[str, ...] = ()  # folders added to PYTHONPATH of the child and its children


class ChildProcess:
    """A running child process; starts with the constructor. `channel` connects to the server inside."""

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
                start_new_session=True,  # a process group that can be killed as a whole and gets no Ctrl-C
                env=environment(python, spec.paths),
            )
        except OSError as error:
            os.close(self._lifeline)
            mine.close()
            arena.close()
            raise _no_interpreter(python, spec, error) from error
        finally:
            its.close()
            os.close(lifeline)
        self.python = python
        self.channel = Channel(mine, arena, is_writing_arena=spec.is_worker_writing_arena)
        self._connection, self._arena = mine, arena
        self._output = output
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
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
                    self._output.take(text)
        self._process.stdout.close()

    def write_stacks(self) -> None:
        """Make the interpreter write the stacks of its threads to its output, which goes to the log."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR2)
            time.sleep(STACKS_S)

    def end_text(self) -> str:
        """Describe how the process ended, with its last line and known causes. Waits up to 5 s for the end."""
        try:
            status = self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            return f"process {self.pid} still runs"
        self._reader.join(timeout=END_S)
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        own = list(takewhile(lambda line: not line.startswith("Fatal Python error"), self._last_lines))
        last = own[-1] if own else "nothing"  # without the stacks that Python adds; they are in the log
        errors = [line for line in own if re.match(r"[\w.]*(Error|Exception): ", line)]
        if errors and errors[-1] != last:  # libraries print messages of their cleanup after the error
            last += f"; its last error: {errors[-1]}"
        return f"process {self.pid} ended with {how}; its last line: {last}{self.diagnosis()}"

    def diagnosis(self) -> str:
        """Return known causes in the output so far, as lines to append to a message; "" if there are none."""
        return "".join(f"\n{text}" for text in self._output.causes)

    def kill(self) -> None:
        """Kill the whole process group. May be called again."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=END_S)
        self._reader.join(timeout=END_S)
        self._connection.close()
        self._arena.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def environment(python: str, paths: tuple[str, ...] = ()) -> dict[str, str]:
    """Return this worker's environment, without variables for the trainer's interpreter if `python` is another."""
    own = dict(os.environ)
    if Path(python).resolve() != Path(sys.executable).resolve() or _prefix(python) != _prefix(sys.executable):
        for name in TRAINER_ONLY:
            own.pop(name, None)
    own["PYTHONUNBUFFERED"] = "1"
    if paths:
        own["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [own.get("PYTHONPATH")])])
    return own


def _prefix(python: str) -> Path:
    """Return the folder of an interpreter: links of several virtual environments may point to one binary."""
    return Path(python).absolute().parent


def _no_interpreter(python: str, spec: ChildSpec, error: OSError) -> RunError:
    return RunError(
        f"The {spec.noun}'s interpreter cannot be started: {python}",
        key=spec.python_key,
        value=python,
        cause=str(error),
        remedy=spec.python_remedy,
        exit_status=ExitStatus.placement,
    )


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
