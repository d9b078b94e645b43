"""Restores signal handlers after a library has replaced them, and at the end of a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def signal_handlers_kept(*numbers: signal.Signals) -> Iterator[None]:
    """Restore the handlers of these signals at the end, also if C code has replaced them unseen by Python."""
    kept = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)


def put_back(previous: Mapping[signal.Signals, Any], is_ending: bool) -> None:
    """Restore the previous handlers.

    is_ending: a scheduler's signal is ending this process. SIGTERM and SIGUSR1 are then ignored, since the scheduler
    may repeat them, and a death by a signal would change the exit status.
    """
    for number, handler in previous.items():
        signal.signal(number, signal.SIG_IGN if is_ending and number != signal.SIGINT else handler)
