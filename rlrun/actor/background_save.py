"""A checkpoint that a thread writes while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


class BackgroundSave:
    """Example: saving = BackgroundSave(writing.complete); …; saving.wait(600.0)."""

    def __init__(self, write: Callable[[], None]):
        self._outcome: Future[None] = Future()
        # a daemon, since a disk that hangs must not keep the process from its end
        threading.Thread(target=self._run, args=(write,), name="checkpoint", daemon=True).start()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)

    @property
    def is_done(self) -> bool:
        """Return whether the write has ended, well or not."""
        return self._outcome.done()

    def wait(self, deadline_s: float) -> None:
        """Wait for the end. Raises what the write raised, and TimeoutError at the deadline."""
        self._outcome.result(deadline_s)
