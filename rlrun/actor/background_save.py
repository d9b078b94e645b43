"""A checkpoint that a thread writes while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future


class BackgroundSave:
    """Example: saving = BackgroundSave(writing.complete); …; saving.seconds(600.0)."""

    def __init__(self, write: Callable[[], None]):
        self._outcome: Future[float] = Future()
        # a daemon, since a disk that hangs must not keep the process from its end
        threading.Thread(target=self._run, args=(write,), name="checkpoint", daemon=True).start()

    def _run(self, write: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            write()
        except BaseException as error:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(time.monotonic() - began)

    @property
    def is_done(self) -> bool:
        """Return whether the write has ended, well or not."""
        return self._outcome.done()

    def seconds(self, deadline_s: float) -> float:
        """Wait for the end. Returns how long the write took, or raises what it raised; TimeoutError at the deadline."""
        return self._outcome.result(deadline_s)
