"""SIGINT, SIGTERM, SIGUSR1: the first asks a training run to end after the step, the second ends it now."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rlrun.system.process_io import PreemptedError, restore_signal_handlers


class StopSignal:
    """While open, `is_requested` says whether a person or the scheduler asked to stop.

    defer: the first signal only sets it. A second one (without `defer`, the first one) raises KeyboardInterrupt
    in the main thread: PreemptedError, if any of them is a scheduler's. A scheduler's signal may come several times,
    once to every process of the job step and once more from the parent. Signals within `ECHO_S` seconds therefore count
    as one, except those from the keyboard. Inside `saving`, further signals of a scheduler change nothing; once the
    caller has set `handled`, no signal does.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    ECHO_S = 2.0

    def __init__(self, defer: bool) -> None:
        self.defer = defer
        self.name: str | None = None  # name of the first signal
        self.handled = False  # set by the caller when nothing is left to save, and the workers end within seconds
        self._is_announced = False
        self._is_saving = False
        self._is_scheduled = False  # whether one of the signals is a scheduler's
        self._came_s = -self.ECHO_S  # monotonic time of the first signal

    @property
    def is_requested(self) -> bool:
        """Whether a signal has come."""
        return self.name is not None

    def __enter__(self) -> StopSignal:
        self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.SIGNALS)  # blocked by rlrun.node
        return self

    def __exit__(self, *_: object) -> None:
        restore_signal_handlers(self._previous, is_ending=self.handled)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise KeyboardInterrupt for signals inside this context, including a pending one."""
        if self.is_requested:
            raise KeyboardInterrupt
        was_deferred = self.defer
        self.defer = False
        try:
            yield
        finally:
            self.defer = was_deferred

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Ignore further signals of a scheduler inside: it asks for a checkpoint, which is written here."""
        self._is_saving = True
        try:
            yield
        finally:
            self._is_saving = False

    def announce(self, note: Callable[[str], None]) -> None:
        """Print once that a stop was requested, if signals are deferred."""
        if self.is_requested and self.defer and not self._is_announced:
            self._is_announced = True
            note(f"{self.name}: ending after this step, with a checkpoint; again to end now")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_keyboard = number == signal.SIGINT
        is_first = not self.is_requested
        self._is_scheduled |= not is_keyboard
        if is_first:
            self.name = signal.Signals(number).name
            self._came_s = time.monotonic()
        elif self.handled or (not is_keyboard and (self._is_saving or time.monotonic() < self._came_s + self.ECHO_S)):
            return
        if not (is_first and self.defer):
            raise PreemptedError if self._is_scheduled else KeyboardInterrupt
