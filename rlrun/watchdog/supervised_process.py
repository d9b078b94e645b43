"""A child process that is started again when it ends, is stopped, or no longer answers."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rlrun.watchdog import node_state

logger = logging.getLogger(__name__)

_UNRESPONSIVE_S = 15.0  # without an answer before it is restarted; a loaded host may take some seconds
_END_S = 5.0
_MAX_RESTARTS = 20  # after so many, the next one would end as well


class SupervisedProcess:
    """Supervises one child. `start` starts it; `is_healthy` is called every `period_s` and returns whether it answered.

    Example::

        child = SupervisedProcess("sentinel", lambda: subprocess.Popen(["sleep", "60"]), lambda process: True, 5.0)
        child.close()
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], subprocess.Popen],
        is_healthy: Callable[[subprocess.Popen], bool],
        period_s: float,
        note: Callable[[str], None] = logger.warning,
    ):
        """note: receives a sentence about every restart."""
        self._name, self._start, self._is_healthy, self._period_s, self._note = name, start, is_healthy, period_s, note
        self.process = start()
        self._num_restarts = 0
        self._answered = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"supervisor of the {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self._is_over.set()
        self._thread.join(timeout=_END_S)
        self._end()

    def _watch(self) -> None:
        while not self._is_over.wait(self._period_s):
            why = self._symptom()
            if why and not self._is_over.is_set() and not self._restart(why):
                return

    def _symptom(self) -> str:

        status = self.process.poll()
        if status is not None:
            return f"ended ({describe_exit(status)})"
        if node_state.state(self.process.pid) in ("T", "t"):
            return "was stopped (state T)"
        if self._is_healthy(self.process):
            self._answered = time.monotonic()
        silent_s = time.monotonic() - self._answered
        return f"has not answered for {silent_s:.0f} s" if silent_s > _UNRESPONSIVE_S else ""

    def _restart(self, why: str) -> bool:
        """Start the process again. Returns False after the last restart."""
        self._end()
        self._num_restarts += 1
        name = f"the {self._name} of {socket.gethostname()}"
        if self._num_restarts > _MAX_RESTARTS:
            self._report(f"{name} {why}, as {_MAX_RESTARTS} before it; it is not started again")
            return False
        try:
            self.process = self._start()
            self._report(f"{name} {why}; started again")
        except OSError as error:
            self._report(f"{name} {why}, and cannot be started again now: {error}")
        self._answered = time.monotonic()
        return True

    def _report(self, text: str) -> None:
        """Report in a thread of its own: the log may be on a disk that hangs, and the supervision must go on."""
        threading.Thread(target=self._note, args=(text,), daemon=True).start()

    def _end(self) -> None:
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # the process hangs in the kernel
            self.process.wait(timeout=_END_S)


def describe_exit(status: int) -> str:
    """Describe a return code. Example: describe_exit(-9) == "killed by SIGKILL"."""
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"
