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


def test_a_private_ray_ends_with_its_session_and_its_workers_share_a_core_fairly(tmp_path):
    with RaySession(load(["run=debug", f"output_dir={tmp_path}"]), None) as session:
        folder = str(session._folder.path)
        started = services(folder)
        assert "gcs_server" in started and "raylet" in started
        assert [node.name for node in session.nodes()]
        assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)
    assert services(folder) == ""
