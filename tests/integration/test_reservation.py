"""Machines without accelerators: cores are reserved as well, and the second job is told who has them."""

from __future__ import annotations

import os

import pytest

from rlrun.cluster.ray_session import RaySession
from rlrun.cluster.reservation import Reservation
from rlrun.config.loader import load
from rlrun.placement.planner import plan
from rlrun.placement.this_machine import known_inventory
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError

pytestmark = pytest.mark.integration


def test_cores_belong_to_one_job(tmp_path):
    config = load(["run=debug", f"output_dir={tmp_path}", f"rollout.num_threads={os.cpu_count()}"])
    with RaySession(config, None) as connection:
        nodes = {node.name: node for node in connection.nodes()}
        slots = plan(Workload(config), known_inventory(config)).slots
        assert not any(slot.accelerators for slot in slots), "this test is for machines without accelerators"
        first = Reservation(slots, nodes, "first", 30.0)
        with pytest.raises(RunError, match="no room for this run within 2 s") as refusal:
            Reservation(slots, nodes, "second", 2.0)
        assert refusal.value.exit_status is ExitStatus.placement
        assert "CPU wanted, 0 free; held by first" in refusal.value.cause
        first.close()
        Reservation(slots, nodes, "third", 30.0).close()
