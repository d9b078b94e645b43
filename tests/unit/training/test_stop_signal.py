"""Signals as people and schedulers send them."""

from __future__ import annotations

import os
import signal

import pytest

from rlrun.system.process_io import PreemptedError
from rlrun.training import stop_signal
from rlrun.training.stop_signal import StopSignal


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands; advance it by setting clock[0]."""
    now = [100.0]
    monkeypatch.setattr(stop_signal.time, "monotonic", lambda: now[0])
    return now


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_the_echo_of_a_schedulers_signal_is_the_same_signal(clock):
    with StopSignal(defer=True) as stop:
        send(signal.SIGUSR1)
        send(signal.SIGUSR1)
        send(signal.SIGTERM)
        assert stop.name == "SIGUSR1"
        clock[0] += 10
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)


def test_the_keyboard_twice_means_now(clock):
    with StopSignal(defer=True) as stop:
        send(signal.SIGINT)
        assert stop.is_requested
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_without_patience_the_first_ends_it(clock):
    with StopSignal(defer=False), pytest.raises(KeyboardInterrupt):
        send(signal.SIGUSR1)


def test_while_nothing_can_be_saved_the_first_ends_it_and_its_echo_does_not_disturb(clock):
    with StopSignal(defer=True) as stop:
        with pytest.raises(KeyboardInterrupt), stop.interruptible():
            send(signal.SIGTERM)
        send(signal.SIGTERM)
        assert stop.name == "SIGTERM" and stop.defer
        with pytest.raises(KeyboardInterrupt), stop.interruptible():
            pytest.fail("it was asked before")


@pytest.mark.parametrize(
    "pair", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)]
)
def test_two_signals_end_it_as_the_scheduler_asks_if_one_of_them_is_a_schedulers(clock, pair):
    with StopSignal(defer=True):
        send(pair[0])
        clock[0] += 10
        with pytest.raises(PreemptedError):
            send(pair[1])


def test_the_keyboard_alone_is_no_scheduler(clock):
    with StopSignal(defer=True):
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt) as interrupt:
            send(signal.SIGINT)
        assert type(interrupt.value) is KeyboardInterrupt


def test_a_scheduler_does_not_cut_short_a_checkpoint_and_a_person_does(clock):
    with StopSignal(defer=True) as stop, stop.saving():
        for _ in range(3):
            send(signal.SIGTERM)
            clock[0] += 10
        assert stop.name == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_a_run_that_is_saved_ends_in_order_whatever_comes(clock):
    with StopSignal(defer=True) as stop:
        send(signal.SIGINT)
        stop.handled = True
        send(signal.SIGINT)
        send(signal.SIGTERM)
        stop.handled = False  # so that this process hears signals again
