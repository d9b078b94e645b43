"""A process started in an interpreter and process group of its own, its output read, killed as a whole."""

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
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

TRAINERS_OWN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")  # of no use in another interpreter
LAST_LINES = 400
END_S = 5.0  # for a killed group to be gone
STACKS_S = 0.5  # for the interpreter to write its stacks


@dataclass(frozen=True)
class Tenant:
    """Who lives in the process, and what messages call it.

    Example: Tenant("simulator", "rlrun.envs.remote.server", "placement.nodes", "`python:` of the node group names it")
    """

    noun: str
    module: str  # of rlrun; its `serve` takes the three file descriptors
    python_key: str  # the configuration key that names the interpreter
    python_remedy: str
    is_worker_writing_arena: bool = False  # large arrays go to the tenant; False: they come from it
    paths: tuple[str, ...] = ()  # folders added to its PYTHONPATH, and that of its children


class OwnProcess:
    """Runs from its making to `kill`, or to its own end. `channel` speaks with the server inside."""

    def __init__(self, python: str, tenant: Tenant, output: Output):
        """Raises RunError when `python` cannot be started."""
        mine, its = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        arena = Arena(os.memfd_create("rlrun"))
        descriptors = (its.fileno(), arena.fd, lifeline)
        command = [python, bootstrap.__file__, *map(str, descriptors), tenant.module]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, so that all of it can be killed, and no Ctrl-C hits it
                env=environment(python, tenant.paths),
            )
        except OSError as error:
            os.close(self._lifeline)
            mine.close()
            arena.close()
            raise _no_interpreter(python, tenant, error) from error
        finally:
            its.close()
            os.close(lifeline)
        self.python = python
        self.channel = Channel(mine, arena, is_writing_arena=tenant.is_worker_writing_arena)
        self._connection, self._arena = mine, arena
        self._output = output
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.last_output = time.monotonic()
        self._reader = threading.Thread(target=self._read, name=f"output of {self._process.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

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
        errors = [line for line in own if re.match(r"[\w.]*(Error|Exception): ", line)]
        if errors and errors[-1] != last:  # libraries like to tidy up, and to say so, after what matters
            last += f"; its last error: {errors[-1]}"
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


def environment(python: str, paths: tuple[str, ...] = ()) -> dict[str, str]:
    """That of this worker, as the plan made it, without what only concerns the trainer's interpreter."""
    own = dict(os.environ)
    if Path(python).resolve() != Path(sys.executable).resolve() or _prefix(python) != _prefix(sys.executable):
        for name in TRAINERS_OWN:
            own.pop(name, None)
    own["PYTHONUNBUFFERED"] = "1"
    if paths:
        own["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [own.get("PYTHONPATH")])])
    return own


def _prefix(python: str) -> Path:
    """The virtual environment that a path names: links to one binary may belong to several."""
    return Path(python).absolute().parent


def _no_interpreter(python: str, tenant: Tenant, error: OSError) -> RunError:
    return RunError(
        f"The {tenant.noun}'s interpreter cannot be started: {python}",
        key=tenant.python_key,
        value=python,
        cause=str(error),
        remedy=tenant.python_remedy,
        exit_status=ExitStatus.placement,
    )
