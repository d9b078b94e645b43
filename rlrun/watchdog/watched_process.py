"""A child process that looks after a run, and is itself looked after: one that ends or stops is started again."""

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

_PATIENCE_S = 15.0  # without an answer, before it is replaced: on a crowded host it may take a while
_END_S = 5.0
_MOST = 20  # replacements; whatever ends it so often would end the next one too


class WatchedProcess:
    """`start` makes the process, `is_well` tells about once in `period_s` whether it has answered since.

    Example::

        child = WatchedProcess("sentinel", lambda: subprocess.Popen(["sleep", "60"]), lambda process: True, 5.0)
        child.close()
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], subprocess.Popen],
        is_well: Callable[[subprocess.Popen], bool],
        period_s: float,
        say: Callable[[str], None] = logger.warning,
    ):
        """say: told of every replacement."""
        self._name, self._start, self._is_well, self._period_s, self._say = name, start, is_well, period_s, say
        self.process = start()
        self._num_replaced = 0
        self._answered = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch of the {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it. Safe to call twice."""
        self._is_over.set()
        self._thread.join(timeout=_END_S)
        self._end()

    def _watch(self) -> None:
        while not self._is_over.wait(self._period_s):
            why = self._ailment()
            if why and not self._is_over.is_set() and not self._replaced(why):
                return

    def _ailment(self) -> str:
        """What is wrong with it, in words; "" for nothing."""
        status = self.process.poll()
        if status is not None:
            return f"ended ({ending(status)})"
        if node_state.state(self.process.pid) in ("T", "t"):
            return "was stopped (state T)"
        if self._is_well(self.process):
            self._answered = time.monotonic()
        silent_s = time.monotonic() - self._answered
        return f"has not answered for {silent_s:.0f} s" if silent_s > _PATIENCE_S else ""

    def _replaced(self, why: str) -> bool:
        """Whether it is looked after further."""
        self._end()
        self._num_replaced += 1
        name = f"the {self._name} of {socket.gethostname()}"
        if self._num_replaced > _MOST:
            self._tell(f"{name} {why}, as {_MOST} before it; it is not started again")
            return False
        try:
            self.process = self._start()
            self._tell(f"{name} {why}; started again")
        except OSError as error:
            self._tell(f"{name} {why}, and cannot be started again now: {error}")
        self._answered = time.monotonic()
        return True

    def _tell(self, text: str) -> None:
        """In a thread: the log may lie on a disk that hangs, and this one has to go on."""
        threading.Thread(target=self._say, args=(text,), daemon=True).start()

    def _end(self) -> None:
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            self.process.wait(timeout=_END_S)


def ending(status: int) -> str:
    """How a process ended, by its return code. Example: ending(-9) == "killed by SIGKILL"."""
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"
