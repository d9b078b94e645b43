"""A child process with its own interpreter and process group: its output is read, and it is killed as a group."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from rlrun.pipe import bootstrap
from rlrun.pipe.arena import Arena
from rlrun.pipe.output import Output
from rlrun.pipe.wire import Channel
from rlrun.system.errors import ExitStatus, RunError

TRAINER_ONLY = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")  # would break another interpreter
LAST_LINES = 400
END_S = 5.0  # limit for a killed group to end
STACKS_S = 0.5  # time for the interpreter to write its stacks


@dataclass(frozen=True)
class ChildSpec:
    """What runs in a child process, and words for messages about it.

    Example: ChildSpec("simulator", "rlrun.envs.remote.server", "placement.nodes", "`python:` of the group names it")
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
