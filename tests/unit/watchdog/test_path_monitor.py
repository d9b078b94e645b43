"""Paths that lose large packets are reported during a wait, and excuse silent workers."""

from __future__ import annotations

import threading

import pytest

from rlrun.config.loader import load
from rlrun.system.errors import RunError
from rlrun.system.status import WorkerStatus
from rlrun.system.telemetry import Telemetry
from rlrun.watchdog.probes import PATH_PERIOD_S, PathMonitor
from rlrun.watchdog.watchdog import Watchdog

LOST = "the network loses large packets: packets of 1500 bytes from train to sim get lost, 1400 arrive"


class Network:
    """A path that loses packets while `faults` says so, and a clock."""

    def __init__(self) -> None:
        self.now, self.faults, self.num_tries = 100.0, [], 0
        self.monitor = PathMonitor(self.measure, lambda: self.now)

    def measure(self) -> list[str]:
        self.num_tries += 1
        return list(self.faults)

    def checked(self) -> list[str]:
        """Check, and wait for the try that began."""
        self.monitor.check()
        self.monitor._thread.join(10)
        return self.monitor.check()


def test_a_path_is_tried_periodically() -> None:
    network = Network()
    for _ in range(3):
        assert network.checked() == []
    assert network.num_tries == 1
    network.now += PATH_PERIOD_S
    network.faults = [LOST]
    assert network.checked() == [LOST] and network.num_tries == 2


def test_after_a_fault_silence_is_excused_for_a_while() -> None:
    network = Network()
    assert not network.monitor.excuses_silence
    network.faults = [LOST]
    network.checked()
    assert network.monitor.excuses_silence
    network.now, network.faults = network.now + 30, []
    network.checked()
    network.now += 9
    assert network.monitor.excuses_silence
    network.now += 2
    assert not network.monitor.excuses_silence


def test_a_slow_try_excuses_silence_for_a_while() -> None:
    is_over = threading.Event()
    network = Network()
    monitor = PathMonitor(lambda: [] if is_over.wait(30) else [LOST], lambda: network.now)
    monitor.check()
    assert not monitor.excuses_silence
    network.now += 2
    assert monitor.excuses_silence
    network.now += PATH_PERIOD_S
    assert not monitor.excuses_silence, "a try that takes so long proves nothing"
    is_over.set()


def test_no_worker_is_blamed_for_a_link_that_loses_large_packets(tmp_path) -> None:
    notes: list[str] = []
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.budgets.learn_driver("idle", 1.0)
    network = Network()
    network.faults = [LOST]
    watchdog.network.paths = network.monitor

    def check(silence_s: float) -> None:
        watchdog.board.put([WorkerStatus("env/0", "sim", 4711, "idle", 0.0, silence_s=silence_s)])
        watchdog._check("trajectories", ["env/0"], silence_s)

    check(4.0)
    network.monitor._thread.join(10)
    for silence_s in (5.0, 15.0, 100.0):
        check(silence_s)
    assert notes == [f"{LOST}; no worker is blamed, waiting up to 600 s"]
    with pytest.raises(RunError):
        check(601.0)
    network.now, network.faults = network.now + PATH_PERIOD_S, []
    watchdog.network.check(5.0, 600.0)
    network.monitor._thread.join(10)
    watchdog.network.check(5.0, 600.0)
    assert notes[-1] == "the network carries packets of all sizes in time again"
