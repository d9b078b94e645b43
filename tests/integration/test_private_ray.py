"""What a run starts of Ray for itself, and what is left when it ends."""

from __future__ import annotations

import os

import psutil
import pytest
import ray

from rlrun.cluster.ray_session import RaySession
from rlrun.config.loader import load

pytestmark = pytest.mark.integration


def services(folder: str) -> str:
    """Command lines of this process's children that name the folder of Ray."""
    lines = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    return "\n".join(line for line in lines if folder in line)


def test_nothing_reads_the_logs_for_a_driver_that_does_not_want_them(tmp_path):
    with RaySession(load(["run=debug", f"output_dir={tmp_path}"]), None) as connection:
        folder = str(connection._folder.path)
        started = services(folder)
        assert "gcs_server" in started and "raylet" in started and "log_monitor" not in started
        assert [node.name for node in connection.nodes()]
    assert services(folder) == ""


def test_workers_share_a_core_fairly_with_other_programs(tmp_path):
    with RaySession(load(["run=debug", f"output_dir={tmp_path}"]), None):
        assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)
