"""What only processes of their own can do: die, hang, and leave something behind."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.controller.env_group import EnvGroup
from rlrun.placement.planner import plan
from rlrun.placement.this_machine import known_inventory
from rlrun.system.errors import RunError
from tests.workers import start_workers

pytestmark = pytest.mark.integration


def pid_of(workers, worker: str) -> int:
    """Of a worker that starts; on a busy machine it takes a while to answer."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for status in workers.statuses():
            if status.worker == worker:
                return status.pid
    raise TimeoutError(f"{worker} has not answered")


def test_a_stopped_worker_and_a_killed_one_are_named(tmp_path):
    config = load(["run=debug", f"output_dir={tmp_path}", "env.num_workers=2"])
    workers = start_workers(config, plan(config, known_inventory(config)), ["env"], tmp_path)
    try:
        pid = pid_of(workers, "env/1")
        os.kill(pid, signal.SIGSTOP)
        waiting = EnvGroup(workers).load()
        with pytest.raises(RunError, match=r"env\[1\]@.* is stopped \(state T\)"):
            workers.wait(waiting, "simulators", 30.0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"env/1(\.load)?: its process ended"):
            workers.wait(waiting, "simulators", 30.0)
    finally:
        workers.close()


def test_a_worker_whose_node_is_gone_is_not_waited_for(tmp_path, monkeypatch):
    config = load(["run=debug", f"output_dir={tmp_path}", "recovery.node_wait_s=0"])
    workers = start_workers(config, plan(config, known_inventory(config)), ["env"], tmp_path)
    try:
        assert workers.replace("env", 0) == [("env", 0)]
        assert workers.wait(EnvGroup(workers).load(), "simulators", 120.0)
        monkeypatch.setattr(workers._connection, "nodes", list)
        with pytest.raises(RunError, match="has left the cluster; the run does not fit on what is left"):
            workers.replace("env", 0)
    finally:
        workers.close()


def test_nothing_is_left_behind(tmp_path):
    with tempfile.TemporaryDirectory(prefix="rl") as temp_dir:  # pytest's own folders are too long for Ray
        check_that_nothing_is_left(tmp_path, Path(temp_dir))


def test_a_long_temporary_folder_is_refused(tmp_path):
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    config = load(["run=debug", f"output_dir={tmp_path}", f"cluster.temp_dir={deep}"])
    with pytest.raises(RunError, match="bytes too long") as refusal:
        start_workers(config, plan(config, known_inventory(config)), ["env"], tmp_path)
    assert refusal.value.key == "cluster.temp_dir" and not list(deep.iterdir())


def check_that_nothing_is_left(tmp_path, temp_dir):
    config = load(["run=debug", f"output_dir={tmp_path}", f"cluster.temp_dir={temp_dir}"])
    token = Path.home() / ".ray" / "auth_token"
    had_token = token.exists()
    start_workers(config, plan(config, known_inventory(config)), ["env"], tmp_path).close()
    assert not list(temp_dir.iterdir()) and token.exists() == had_token
