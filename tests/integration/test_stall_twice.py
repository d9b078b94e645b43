"""The same stall, twice in one run and again in the next one with the same cache, is reported as fast each time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.controller.workers import WorkerGroup
from rlrun.placement.planner import plan
from rlrun.placement.this_machine import known_inventory
from rlrun.placement.workload import Workload
from rlrun.system.errors import RunError
from rlrun.system.machine_load import load_factor
from tests.workers import start_workers

FLOOR_S = 6.0
MISBEHAVES_S = 9.0  # at least, and until it is reported; five times as long must not become the budget
SETTINGS = [
    "run=debug",
    "env.num_workers=1",
    "env.num_envs=2",
    "demos.num_episodes=400",
    f"watchdog.floor_s={FLOOR_S}",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose file `fault` names the env workers that stall."""
    paths = [str(Path(__file__).parent / "faults"), str(Path(__file__).resolve().parents[2])]
    monkeypatch.setenv("RLRUN_TEST_FAULT", str(tmp_path / "fault"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]))
    return tmp_path


class SmallRun:
    """One env worker that records demonstrations."""

    def __init__(self, folder, name):
        config = load([*SETTINGS, f"output_dir={folder}/{name}", f"cache_dir={folder}/cache"])
        self.fault = folder / "fault"
        self.workers = start_workers(config, plan(Workload(config), known_inventory(config)), ["env"], folder / name)
        WorkerGroup(self.workers, "env").call(lambda env: env.load(), "simulators", 100.0)
        (self.recording,) = WorkerGroup(self.workers, "env").submit_all(
            lambda env: env.record_demos(f"{folder}/{name}/demos")
        )

    def status(self):
        """Return the status of the worker, once it answers."""
        while not (statuses := self.workers.statuses()):
            pass
        return statuses[0]

    def moving(self, seconds):
        """Wait until the worker has simulated for `seconds`."""
        before, end = self.status().counters, time.monotonic() + 60
        while self.status().counters == before and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(seconds)
        assert self.status().counters != before

    def stalled_s(self):
        """Let the worker stall until that is reported, and then go on. Returns how long the report took."""
        self.moving(1.5)
        began, pid = time.monotonic(), self.status().pid
        self.fault.write_text(f"{pid} pause")
        with pytest.raises(RunError, match=r"env\[0\]@.* has not moved for"):
            self.workers.wait([self.recording], "demonstrations", 600.0)
        delay_s = time.monotonic() - began
        time.sleep(max(0.0, MISBEHAVES_S - delay_s))
        self.fault.unlink()
        self.moving(0.0)  # the silence is over, and its end is on the board
        return delay_s


@pytest.mark.long
def test_a_stall_is_reported_as_fast_as_the_first(folder):
    delays = []
    for name, count in (("first", 2), ("next", 1)):
        run = SmallRun(folder, name)
        try:
            delays += [run.stalled_s() for _ in range(count)]
        finally:
            run.workers.close()
    load = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert all(FLOOR_S <= delay < load_factor(load) * FLOOR_S + 12.0 * load for delay in delays), delays
