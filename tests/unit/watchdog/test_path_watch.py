"""Paths that lose large packets are told while something is waited for, and excuse those who are silent."""

from __future__ import annotations

import threading

import pytest

from rlrun.config.loader import load
from rlrun.data.messages import WorkerStatus
from rlrun.observability.telemetry import Telemetry
from rlrun.system.errors import RunError
from rlrun.watchdog.path_watch import PERIOD_S, PathWatch
from rlrun.watchdog.watchdog import Watchdog

LOST = "packets of 1500 bytes from train to sim get lost, 1400 arrive"


class Network:
    """A path that loses packets while `faults` says so, and a clock."""

    def __init__(self) -> None:
        self.now, self.faults, self.num_tries = 100.0, [], 0
        self.watch = PathWatch(self.measure, lambda: self.now)

    def measure(self) -> list[str]:
        self.num_tries += 1
        return list(self.faults)

    def look(self) -> list[str]:
        """Look, and let what that began come to its end."""
        self.watch.look()
        self.watch._thread.join(10)
        return self.watch.look()


def test_a_path_is_tried_now_and_then() -> None:
    network = Network()
    for _ in range(3):
        assert network.look() == []
    assert network.num_tries == 1
    network.now += PERIOD_S
    network.faults = [LOST]
    assert network.look() == [LOST] and network.num_tries == 2


def test_after_a_fault_silence_is_excused_for_a_while() -> None:
    network = Network()
    assert not network.watch.excuses_silence
    network.faults = [LOST]
    network.look()
    assert network.watch.excuses_silence
    network.now, network.faults = network.now + 30, []
    network.look()
    network.now += 9
    assert network.watch.excuses_silence
    network.now += 2
    assert not network.watch.excuses_silence


def test_while_a_try_takes_long_nobody_is_blamed_yet() -> None:
    is_over = threading.Event()
    network = Network()
    watch = PathWatch(lambda: [] if is_over.wait(30) else [LOST], lambda: network.now)
    watch.look()
    assert not watch.excuses_silence
    network.now += 2
    assert watch.excuses_silence
    network.now += PERIOD_S
    assert not watch.excuses_silence, "one that takes so long tells nothing"
    is_over.set()


def test_nobody_is_blamed_for_a_link_that_loses_large_packets(tmp_path) -> None:
    notes: list[str] = []
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.budgets.learn_driver("idle", 1.0)
    network = Network()
    network.faults = [LOST]
    watchdog.paths = network.watch

    def look(silence_s: float) -> None:
        watchdog.board.put([WorkerStatus("env/0", "sim", 4711, "idle", 0.0, silence_s=silence_s)])
        watchdog._look("trajectories", ["env/0"], silence_s)

    look(4.0)
    network.watch._thread.join(10)
    for silence_s in (5.0, 15.0, 100.0):
        look(silence_s)
    assert notes == [f"the network loses large packets: {LOST}; nobody is blamed, waiting up to 600 s"]
    with pytest.raises(RunError):
        look(601.0)
    network.now, network.faults = network.now + PERIOD_S, []
    watchdog._look_at_paths(5.0)
    network.watch._thread.join(10)
    watchdog._look_at_paths(5.0)
    assert notes[-1] == "the network lets large packets pass again"
