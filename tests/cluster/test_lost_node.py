"""A run loses two of three hosts: it goes on with the rest, and then waits for one to come back."""

from __future__ import annotations

import json
import time

import pytest

from rlrun.observability.run_files import read_json_lines, read_metrics
from rlrun.system.errors import ExitStatus
from tests.cluster.cluster import ACCELERATORS, ANY_POLICY, DUAL_NODE, Cluster
from tests.cluster.testbed import HostSpec, Testbed

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # seconds each on an idle machine, minutes on a busy one
ONE_EACH = ACCELERATORS | {"sim": "RTX 4090:1:24:rt"}
# As many simulation nodes as there are: the two env workers have one each, or share one.
ANY_SIM = ("placement.nodes.sim.count=null", "placement.roles.env.accelerators=all")
ANY_RATIO = "placement.roles.env.workers_per_accelerator=null"


@pytest.fixture(scope="module")
def training(needs_hosts):
    """A run on `train`, `sim-0` and `sim-1`: the cluster, the run's process, its console and its folder."""
    hosts = [HostSpec("train", "enp3s0"), HostSpec("sim-0", "ens7f1"), HostSpec("sim-1", "eth2")]
    with Testbed(hosts) as testbed:
        folder = testbed.shared / "run"
        settings = [ANY_POLICY, "num_steps=1000", "env.num_envs=4", "node.lost_after_s=4", f"output_dir={folder}"]
        with Cluster(testbed, [*DUAL_NODE, *ANY_SIM, ANY_RATIO, *settings], ONE_EACH) as cluster:
            process, log = cluster.background("train")
            yield cluster, process, log, folder


def more_steps(folder, log, count):
    """Wait until the run has done so many more steps."""
    wanted, end = len(read_metrics(folder)) + count, time.monotonic() + 300
    while len(read_metrics(folder)) < wanted:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)


def env_nodes(folder):
    slots = json.loads((folder / "plan.json").read_text())["slots"]
    return [slot["node"] for slot in slots if slot["role"] == "env"]


def test_a_run_outlives_its_simulation_nodes(training):
    cluster, process, log, folder = training
    more_steps(folder, log, 1)
    assert env_nodes(folder) == ["sim-0", "sim-1"]
    cluster.testbed["sim-1"].kill()
    cluster.wait_for("node sim-1 is lost; the plan changes: env/1 on sim-0", log)
    more_steps(folder, log, 1)
    assert env_nodes(folder) == ["sim-0", "sim-0"]
    cluster.testbed["sim-0"].kill()
    cluster.wait_for("node sim-0 is lost, and without it: Node group 'sim' needs 1 node", log)
    cluster.reboot("sim-1")
    cluster.wait_for("node sim-0 is lost; the plan changes: env/0 on sim-1, env/1 on sim-1", log)
    more_steps(folder, log, 1)
    assert cluster.testbed["train"].stop(process, timeout=60) == ExitStatus.preempted, log.read_text()
    lost = [loss["worker"] for loss in read_json_lines(folder / "losses.jsonl")]
    assert set(lost) == {"env/0", "env/1"} and lost.count("env/1") >= 2  # a loaded machine may lose one more
    faults = [line["num_infra_faults"] for line in read_metrics(folder) if line["num_worker_restarts"]]
    assert sum(faults) == 2 * len(lost)
