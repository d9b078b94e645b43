"""A simulator's process: started in its own interpreter and process group, its output read, killed as a whole."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from itertools import takewhile
from pathlib import Path

from rlrun.config.errors import RunError
from rlrun.config.exit_status import ExitStatus
from rlrun.envs.remote import bootstrap
from rlrun.envs.remote.arena import Arena
from rlrun.envs.remote.output import Output
from rlrun.envs.remote.wire import Channel

logger = logging.getLogger("rlrun.simulator")

TRAINERS_OWN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")  # of no use in another interpreter
LAST_LINES = 400
END_S = 5.0  # for a killed group to be gone
STACKS_S = 0.5  # for the interpreter to write its stacks


class SimulatorProcess:
    """Runs from its making to `kill`, or to its own end. `channel` speaks with the server inside."""

    def __init__(self, python: str, output: Output):
        """Raises RunError when `python` cannot be started."""
        mine, its = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        arena = Arena(os.memfd_create("rlrun"))
        command = [python, bootstrap.__file__, *(str(fd) for fd in (its.fileno(), arena.fd, lifeline))]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=(its.fileno(), arena.fd, lifeline),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, so that all of it can be killed, and no Ctrl-C hits it
                env=environment(python),
            )
        except OSError as error:
            os.close(self._lifeline)
            mine.close()
            arena.close()
            raise _no_interpreter(python, error) from error
        finally:
            its.close()
            os.close(lifeline)
        self.python = python
        self.channel = Channel(mine, arena, is_writing_arena=False)
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
        """Every line goes to the log of this worker; the last ones are kept for the message about its end."""
        assert self._process.stdout is not None
        pending = b""
        while block := os.read(self._process.stdout.fileno(), 1 << 16):
            self.last_output = time.monotonic()
            *lines, pending = (pending + block).replace(b"\r\n", b"\n").split(b"\n")
            pending = pending[-(1 << 16) :]
            for line in lines:
                text = line.rsplit(b"\r")[-1].decode(errors="replace").rstrip()  # of a progress bar, its last state
                if text:
                    self._last_lines.append(text)
                    self._output.take(text)
        self._process.stdout.close()

    def write_stacks(self) -> None:
        """Have the interpreter write the stacks of its threads to its output, and so to the log."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR2)
            time.sleep(STACKS_S)

    def end_text(self) -> str:
        """How it ended, what its output says about it, and its last line. Waits a moment for the end."""
        try:
            status = self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            return f"process {self.pid} still runs"
        self._reader.join(timeout=END_S)
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        own = list(takewhile(lambda line: not line.startswith("Fatal Python error"), self._last_lines))
        last = own[-1] if own else "nothing"  # the stacks that Python adds are in the log
        return f"process {self.pid} ended with {how}; its last line: {last}{self.diagnosis()}"

    def diagnosis(self) -> str:
        """What the output so far says about causes, as lines to append; "" where nothing was recognised."""
        return "".join(f"\n{text}" for text in self._output.causes)

    def kill(self) -> None:
        """End the whole process group at once. Safe to call again."""
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


def environment(python: str) -> dict[str, str]:
    """That of this worker, as the plan made it, without what only concerns the trainer's interpreter."""
    own = dict(os.environ)
    if Path(python).resolve() != Path(sys.executable).resolve() or _prefix(python) != _prefix(sys.executable):
        for name in TRAINERS_OWN:
            own.pop(name, None)
    own["PYTHONUNBUFFERED"] = "1"
    return own


def _prefix(python: str) -> Path:
    """The virtual environment that a path names: links to one binary may belong to several."""
    return Path(python).absolute().parent


def _no_interpreter(python: str, error: OSError) -> RunError:
    return RunError(
        f"The simulator's interpreter cannot be started: {python}",
        key="placement.nodes",
        value=python,
        cause=str(error),
        remedy="`python:` of the simulation node group names the interpreter in which the simulator is installed, "
        "as a path on that node.",
        exit_status=ExitStatus.placement,
    )
