"""A scheduler's signal waits while the command starts, and a late one changes nothing."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from rlrun.cluster.node_service import Signals, _start_command

COMMAND = """
import time
time.sleep(0.3)  # as long as imports take
from rlrun.training.stop_signal import StopSignal
with StopSignal(defer=True) as stop:
    raise SystemExit(stop.name)
"""

ENDING = """
import os, signal
from rlrun.training.stop_signal import StopSignal
def again():
    os.kill(os.getpid(), signal.SIGTERM)
with StopSignal(defer=True) as stop:
    again()
    stop.handled = True
    StopSignal.ECHO_S = 0.0
    again()
again()
raise SystemExit(75)
"""


def test_a_warning_before_there_is_a_handler_is_not_lost(capfd):
    command = _start_command([sys.executable, "-c", COMMAND], dict(os.environ))
    command.send_signal(signal.SIGUSR1)
    assert command.wait(timeout=60) == 1
    assert "SIGUSR1" in capfd.readouterr().err.splitlines()  # beside what a Ray of another test still writes
    assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_schedulers_signal_that_comes_again_while_the_run_ends_does_not_change_its_status():
    assert _start_command([sys.executable, "-c", ENDING], dict(os.environ)).wait(timeout=60) == 75


@pytest.fixture
def received():
    """The numbers of SIGTERM and SIGINT that reach the previous handlers."""
    numbers: list[int] = []
    watched = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, _: numbers.append(number)) for number in watched}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_node_that_ends_by_a_signal_writes_its_status_although_more_come(received):
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.take() == [signal.SIGTERM]
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == []
    os.kill(os.getpid(), signal.SIGINT)  # a person's signal still counts
    assert received == [signal.SIGINT]


def test_signals_are_as_before_after_a_node_that_ends_by_itself(received):
    with Signals():
        os.kill(os.getpid(), signal.SIGUSR1)  # for the command
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGTERM]
