"""Signal handlers that survive a library which puts its own in their place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def signal_handlers_kept(*numbers: signal.Signals) -> Iterator[None]:
    """Put the handlers of these signals back at the end, also where C code replaced them and Python cannot tell."""
    kept = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)


def put_back(previous: Mapping[signal.Signals, Any], is_ending: bool) -> None:
    """Handlers as they were before.

    is_ending: a scheduler's signal ends this process in good order. Its signals are ignored from now on, as it may
    repeat them until nothing is left, and another death would change the exit status.
    """
    for number, handler in previous.items():
        signal.signal(number, signal.SIG_IGN if is_ending and number != signal.SIGINT else handler)
