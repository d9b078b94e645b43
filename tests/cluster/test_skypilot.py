"""The run block of SkyPilot's YAML, on two hosts, with the variables that SkyPilot sets on each node."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml

from tests.cluster.cluster import ANY_POLICY, DUAL_NODE, declare_accelerators
from tests.cluster.testbed import PYTHON, ROOT

# test_two_hosts.py has the same run without the file's commands
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_its_nodes_join_by_address_and_train(two_hosts):
    declare_accelerators(two_hosts)
    task = yaml.safe_load((ROOT / "scripts/skypilot/train.yaml").read_text())
    addresses = [host.address for host in two_hosts.values()]
    words = ["name='two words'", ANY_POLICY, "num_steps=1", *DUAL_NODE]
    given = {
        "PYTHON": PYTHON,
        "ARGUMENTS": shlex.join(words),
        "RUNS": f"{two_hosts.shared}/sky",
        "SKYPILOT_NODE_IPS": "\n".join(addresses),
        "SKYPILOT_TASK_ID": "sky-1",
    }
    assert set(task["envs"]) | set(task["secrets"]) >= {"ARGUMENTS", "RUNS", "RAY_AUTH_TOKEN"}
    log = two_hosts.shared / "sky-sim.log"
    sim = two_hosts["sim"].start(["bash", "-c", task["run"]], log=log, **given)
    done = two_hosts["train"].run(["bash", "-c", task["run"]], timeout=400, **given)
    assert done.returncode == 0, done.stdout + done.stderr + log.read_text()
    assert sim.wait(timeout=60) == 0, log.read_text()
    run = two_hosts.shared / "sky/sky-1"
    plan = json.loads((run / "plan.json").read_text())
    assert {slot["node"] for slot in plan["slots"]} == {"train", "sim"}
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1
    assert "name: two words" in (run / "config.yaml").read_text()
