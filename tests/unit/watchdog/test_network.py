"""A trouble of the network has one line, whoever notices it first; what others say of the same node is in the log."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config.loader import load
from rlrun.system.status import WorkerStatus
from rlrun.system.telemetry import Telemetry
from rlrun.watchdog import watchdog as watchdog_module
from rlrun.watchdog.network import WINDOW_S, LinkHistory, Network
from rlrun.watchdog.wait_graph import Incoming
from rlrun.watchdog.watchdog import Watchdog

SILENT = "node sim has not answered for 9 s, nor has env[0-1]: its link or power?"
BROKE = "the link between train and sim broke 3 times in 60 s (3 of 6 tries failed)"
LOST = "the network loses large packets: packets of 1500 bytes from train to sim get lost, 1400 arrive"
WAY = "actor/0@train: its input of 0.2 MB from env/0@sim is on its way for 11 s; waiting up to 600 s"


def watched(*nodes: str) -> SimpleNamespace:
    """A network to some nodes, whose paths and links have the faults that a test says."""
    of = SimpleNamespace(notes=[], now=100.0, path=[], link=[])
    of.network = Network(of.notes.append, lambda: of.now)
    links = SimpleNamespace(sentences=lambda least=1: of.link, open=lambda: None, close=lambda: None)
    paths = SimpleNamespace(check=lambda: of.path, excuses_silence=False)
    of.network.connect(nodes, links, paths)
    return of


@pytest.mark.parametrize("first", [SILENT, WAY, LOST, BROKE], ids=["node", "transfer", "path", "link"])
def test_one_trouble_has_one_line(first: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    of = watched("sim", "sim-2")
    sightings = [first, *(other for other in (SILENT, WAY, LOST, BROKE) if other != first)]
    for sentence in sightings:
        of.network.tell(sentence)
        of.now += 20
    of.link = [BROKE]
    of.network.doubts("env/0", LOST)
    of.network.check(5.0, 600.0)
    assert of.notes == [first] and all(sentence in caplog.text for sentence in sightings)


def test_another_node_has_a_line_of_its_own() -> None:
    of = watched("sim", "sim-2")
    of.network.tell(SILENT)
    of.network.tell(SILENT.replace("sim", "sim-2"))
    of.network.tell(f"{BROKE}; the link between train and sim-2 broke once in 60 s (1 of 6 tries failed)")
    assert of.notes == [SILENT, SILENT.replace("sim", "sim-2")]


def test_a_later_trouble_is_told_again_and_one_that_goes_on_is_not() -> None:
    of = watched("sim")
    of.path = [LOST]
    for _ in range(5):
        of.network.check(5.0, 600.0)
        of.now += WINDOW_S - 1
    of.network.tell(SILENT)
    assert of.notes == [f"{LOST}; no worker is blamed, waiting up to 600 s"]
    of.path = []
    of.network.check(5.0, 600.0)
    assert of.notes[1:] == ["the network carries packets of all sizes in time again"]
    of.now += WINDOW_S
    of.network.tell(SILENT)
    assert of.notes[2:] == [SILENT]


def test_a_lost_worker_is_doubted_in_one_line() -> None:
    of = watched("sim")
    of.network.doubts("env/0", None)
    assert of.notes == []
    of.link = [BROKE]
    of.network.doubts("env/0", LOST)
    assert of.notes == [f"env/0 may not be the cause: {BROKE}; {LOST}"]


def test_a_watchdog_s_wait_tells_a_slow_link_and_its_silent_node_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog_module, "queue_seconds", lambda pids, with_children=True: {})
    notes: list[str] = []
    now = [100.0]
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.clock.seconds = watchdog.board._seconds = lambda: now[0]
    watchdog.network.connect(["sim"], LinkHistory({}), None)
    watchdog.budgets.learn_driver("idle", 1.0)
    sender = WorkerStatus("env/0", "sim", 4712, "idle", 0.0)
    watchdog.board.put([sender, WorkerStatus("actor/0", "train", 4711, "idle", 0.0)])
    missing = {"actor/0": Incoming(("env/0",), 200_000)}
    check = watchdog.watch("update", lambda: watchdog.board.put([sender]), lambda: missing)
    assert check is not None
    for _ in range(15):
        now[0] += 1.0
        check(["actor/0"])
    watchdog.board.put([])
    now[0] += 10.0
    watchdog._warn_of_hosts({"env/0": watchdog.board.processes()["env/0"]})
    assert len(notes) == 1 and "its input of 0.2 MB from env/0@sim is on its way" in notes[0]
