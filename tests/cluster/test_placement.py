"""Placement on a live cluster: its nodes are planned, accelerators belong to one job, and disks count."""

from __future__ import annotations

import time

import pytest

from tests.cluster.cluster import ANY_POLICY, DUAL_NODE, Cluster
from tests.cluster.testbed import PYTHON, HostSpec, Testbed

# A job that holds what its plan takes and works on nothing.
JOB = """
import sys, time
from rlrun.cluster.reservation import Reservation
from rlrun.cluster.launch import Machines
from rlrun.system.errors import RunError
from rlrun.config.loader import load
from rlrun.placement.planner import plan
from rlrun.placement.workload import Workload
name, *overrides = sys.argv[1:]
config = load(overrides)
machines = Machines(config)
nodes = {node.name: node for node in machines.nodes()}
slots = plan(Workload(config), machines.inventory).slots
try:
    held = Reservation(slots, nodes, name, config.cluster.placement_deadline_s, lambda text: print(text, flush=True))
except RunError as error:
    sys.exit(str(error))
print("holds", sorted({(slot.node, *slot.accelerators) for slot in slots}), flush=True)
time.sleep(600)
"""
ONE_OF_EACH = ["actor.num_workers=1", "env.num_workers=1"]
MEGABYTE = 10**6


@pytest.fixture(scope="module")
def cluster(two_hosts):
    with Cluster(two_hosts, [*DUAL_NODE, f"output_dir={two_hosts.shared}/run"]) as cluster:
        yield cluster


def words(cluster, name, accelerator, deadline_s):
    """A job with one worker of each role, all on the accelerators of one index."""
    roles = [f"placement.roles.{role}.accelerators={accelerator}" for role in ("actor", "rollout", "env")]
    more = [*ONE_OF_EACH, *roles, f"cluster.placement_deadline_s={deadline_s}", "cluster.address=10.77.0.1:6379"]
    return [PYTHON, "-u", "-c", JOB, name, *cluster.overrides, *more]


def test_the_live_cluster_is_planned(cluster):
    done = cluster.program("plan", "details=true")
    assert done.returncode == 0, done.stderr
    for text in ("machines: Ray cluster of 10.77.0.1", "enp3s0", "GPU 0-1   RTX 4090", "declared for a test"):
        assert text in done.stdout


@pytest.mark.long
def test_no_two_jobs_on_one_accelerator(cluster):
    """The second job waits and names the holder; other jobs start; a killed job releases its accelerators."""
    train = cluster.testbed["train"]
    first = train.start(words(cluster, "first", 0, 30), log=cluster.log("first"))
    cluster.wait_for("holds [('sim', 0), ('train', 0)]", cluster.log("first"))
    beside = train.start(words(cluster, "beside", 1, 30), log=cluster.log("beside"))
    cluster.wait_for("holds [('sim', 1), ('train', 1)]", cluster.log("beside"))

    refused = train.run(words(cluster, "second", 0, 2), timeout=60)
    assert refused.returncode == 1
    assert "no room for this run within 2 s" in refused.stderr
    for node in ("train", "sim"):
        assert f"accelerators 0 of {node} are held by first, root@train, process" in refused.stderr
    assert "beside" not in refused.stderr

    third = train.start(words(cluster, "third", 0, 60), log=cluster.log("third"))
    cluster.wait_for("waiting up to 60 s for resources", cluster.log("third"))
    train.stop(first, number=9)
    cluster.wait_for("holds [('sim', 0), ('train', 0)]", cluster.log("third"), deadline_s=20)
    for job in (beside, third):
        train.stop(job, number=9)


def test_more_than_ray_has_is_refused_at_once(cluster):
    """The inventory file has more accelerators than the node's Ray."""
    file = cluster.testbed.shared / "wishes.yaml"
    kinds = [("train", "A100", 80), ("sim", "RTX 4090", 24)]
    file.write_text(
        "nodes:\n"
        + "".join(
            f"- {{name: {name}, address: {cluster.testbed[name].address}, cpus: 2, memory_gb: 24, "
            f"accelerators: {{model: {model}, count: 8, memory_gb: {memory}}}}}\n"
            for name, model, memory in kinds
        )
    )
    more = [
        "placement.roles.actor.accelerators=0-3",
        "actor.num_workers=4",
        "env.num_envs=4",
        "actor.micro_batch_size=2",
    ]
    start = time.monotonic()
    done = cluster.testbed["train"].run(
        [*words(cluster, "wish", 0, 60), *more, f"placement.inventory={file}"], timeout=60
    )
    assert done.returncode == 1 and time.monotonic() - start < 30
    assert "takes 4 accelerators of node train; its Ray has 2: 2 short" in done.stderr


SPILLING = [
    *(
        ANY_POLICY,
        "env.image_size=256",  # so that frames fill the store
        "env.num_envs=4",
        "num_steps=1",
        "algorithm.global_batch_size=4",
        "actor.micro_batch_size=2",
    ),
    *(
        "cluster.object_store_bytes=80000000",
        "weight_sync.transport=collective",
        "placement.nodes.sim.spill_dirs=[/spill]",
    ),
    "evaluation.num_episodes=1",
]


@pytest.mark.long
def test_spilling_is_planned(needs_hosts):
    """With a small object store and disk, a run that fits finishes, and another one is refused with the numbers."""
    hosts = [HostSpec("train", "enp3s0"), HostSpec("sim", "ens7f1", disks={"/spill": 160 * MEGABYTE})]
    with Testbed(hosts) as testbed:
        overrides = [*DUAL_NODE, *SPILLING, f"output_dir={testbed.shared}/run"]
        with Cluster(testbed, overrides) as cluster:
            done = cluster.program("train", "algorithm.horizon=800")
            assert done.returncode == 3
            assert "Node sim has 0." in done.stderr and "/spill/" in done.stderr and "has room for 0.1" in done.stderr
            batch = ("algorithm.global_batch_size=160", "actor.micro_batch_size=20")
            done = cluster.program("train", "algorithm.horizon=120", *batch, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr
            logs = testbed["sim"].check("bash", "-c", "cat $(find /tmp -name raylet.out -o -name raylet.err)")
            assert "Spilled" in logs
