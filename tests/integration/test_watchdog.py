"""A worker that is stopped, hangs, or holds the GIL is named within its budget, with evidence."""

from __future__ import annotations

import json
import os
import signal
import tarfile
import threading
import time
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.controller.workers import WorkerGroup
from rlrun.placement.planner import plan
from rlrun.placement.this_machine import known_inventory
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError
from tests.workers import start_workers

FLOOR_S = 6.0
SETTINGS = [
    "run=debug",
    "env.num_workers=2",
    "env.num_envs=2",
    "demos.num_episodes=400",
    "watchdog.factor=1.5",
    f"watchdog.floor_s={FLOOR_S}",
    "cluster.step_deadline_s=15",
    "watchdog.heartbeat_s=0.5",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("watchdog")


@pytest.fixture(scope="module")
def environments(folder):
    """Two env workers whose simulators misbehave when the file `fault` says so."""
    before = dict(os.environ)
    os.environ["RLRUN_TEST_FAULT"] = str(folder / "fault")
    paths = [str(Path(__file__).parent / "faults"), str(Path(__file__).resolve().parents[2])]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [before.get("PYTHONPATH")])])
    config = load([*SETTINGS, f"output_dir={folder}", f"cache_dir={folder}/cache"])
    workers = start_workers(config, plan(Workload(config), known_inventory(config)), ["env"], folder)
    try:
        WorkerGroup(workers, "env").call(lambda env: env.load(), "simulators", 100.0)
        yield workers
    finally:
        workers.close()
        os.environ.clear()
        os.environ.update(before)


def stall(workers, folder, misbehave):
    """Record demonstrations on both, and let the second one misbehave. Returns the alarm and its delay."""
    futures = WorkerGroup(workers, "env").submit_all(lambda env: env.record_demos(f"{folder}/demos"))
    started = []

    def later():
        pids: dict[str, int] = {}
        while "env/1" not in pids:  # on a loaded machine it may miss a round
            pids = {status.worker: status.pid for status in workers.statuses()}
        misbehave(pids["env/1"])
        started.append(time.monotonic())

    timer = threading.Timer(3.0, later)
    timer.start()
    with pytest.raises(RunError) as caught:
        workers.wait(futures, "demonstrations", 600.0)
    timer.join(timeout=10.0)
    return caught.value, time.monotonic() - started[0]


def bound_s():
    """Return the time for an alarm: 30 s, and more on a loaded machine."""
    return 30.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def restart(workers):
    for rank in range(2):
        workers.replace("env", rank)
    WorkerGroup(workers, "env").call(lambda env: env.load(), "simulators", 100.0)


def files_of(alarm):
    path = next(line.partition("evidence: ")[2] for line in alarm.cause.splitlines() if line.startswith("evidence"))
    with tarfile.open(path) as archive:
        return {name: archive.extractfile(name).read().decode() for name in archive.getnames()}


def test_a_stopped_worker(environments, folder):
    stopped = []

    def stop(pid):
        stopped.append(pid)
        os.kill(pid, signal.SIGSTOP)

    try:
        alarm, delay_s = stall(environments, folder, stop)
    finally:
        os.kill(stopped[0], signal.SIGCONT)
    assert alarm.exit_status is ExitStatus.stalled and alarm.worker == "env/1"
    assert f"(pid {stopped[0]}) is stopped (state T)" in alarm.message and "env[1]@" in alarm.message
    assert "kill -CONT" in alarm.remedy and alarm.link == "docs/troubleshooting.md#stopped"
    assert delay_s < bound_s()
    files = files_of(alarm)
    assert "record_demos" in next(text for name, text in files.items() if name.endswith("stacks.txt"))
    assert json.loads(files["board.json"])["env/1"]["pid"] == stopped[0]
    restart(environments)


@pytest.mark.parametrize(
    ("kind", "says"), [pytest.param("hang", "no-progress", marks=pytest.mark.long), ("gil", "gil-held")]
)
def test_a_simulator_that_does_not_return(environments, folder, kind, says):
    file = folder / "fault"
    alarm, delay_s = stall(environments, folder, lambda pid: file.write_text(f"{pid} {kind}"))
    file.unlink()
    assert alarm.exit_status is ExitStatus.stalled and alarm.worker == "env/1"
    assert alarm.row == says and "in record demos: misbehave" in alarm.message
    assert delay_s < bound_s()
    restart(environments)
