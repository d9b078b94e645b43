"""Signals that a scheduler sends: who may not see them, and handlers that libraries must not keep."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# A scheduler, systemd and `timeout` signal every process of a job, including Ray's, which would end before the run is
# saved. A session of its own would not protect them: systemd and SLURM signal all processes of a control group.
SHIELDED = (signal.SIGTERM, signal.SIGUSR1)


class PreemptedError(KeyboardInterrupt):
    """A scheduler's signal that ends this process now. Commands end with `ExitStatus.preempted`, not `interrupted`."""


@contextmanager
def signals_held(*numbers: signal.Signals) -> Iterator[None]:
    """Hold signals back from this thread inside the context, and for good from the processes that start in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
