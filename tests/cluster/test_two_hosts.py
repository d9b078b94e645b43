"""On two different hosts, without exported variables, a run trains, resumes, and detects a lost host."""

from __future__ import annotations

import json
import tarfile
import threading
import time

import pytest

from rlrun.system.errors import ExitStatus
from tests.cluster.cluster import ANY_POLICY, DUAL_NODE, Cluster
from tests.cluster.testbed import PYTHON

pytestmark = pytest.mark.timeout(900)  # seconds each on an idle machine, minutes on a busy one
JOINED = "import json; from rlrun.cluster.membership import joined; print(json.dumps(joined('10.77.0.1:6379')))"


@pytest.fixture(scope="module")
def cluster(two_hosts):
    """Both nodes, which run for all tests of this file, in this order."""
    settings = [ANY_POLICY, f"output_dir={two_hosts.shared}/run", "node.lost_after_s=4"]
    with Cluster(two_hosts, [*DUAL_NODE, *settings]) as cluster:
        yield cluster


class WorkersOn(threading.Thread):
    """Records the workers that run on a host."""

    def __init__(self, host):
        super().__init__(daemon=True)
        self.host, self.seen, self._is_over = host, set(), threading.Event()

    def run(self):
        while not self._is_over.wait(0.5):
            for line in self.host.check("ps", "-eo", "args").splitlines():
                if line.startswith("ray::") and "Agent" not in line:
                    self.seen.add(line.split()[0])

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self.join(timeout=10)


def _run(cluster, *overrides):
    done = cluster.program("train", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    run = cluster.testbed.shared / "run"
    plan = json.loads((run / "plan.json").read_text())
    nodes = {f"{slot['role']}/{slot['rank']}": slot["node"] for slot in plan["slots"]}
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return done, nodes, metrics


def test_it_trains_across_the_hosts_to_the_end(cluster):
    with WorkersOn(cluster.testbed["sim"]) as sim:
        done, nodes, metrics = _run(cluster, "weight_sync.is_checksum_verified=true")
    assert abs(metrics[-1]["rollout_logprob_gap"]) < 1e-4  # the actor learned from the frames that the policy saw
    assert {name for name, node in nodes.items() if node == "sim"} == {"env/0", "env/1"}
    assert {name for name, node in nodes.items() if node == "train"} == {"actor/0", "actor/1", "rollout/0"}
    assert sim.seen, "no worker process was seen on sim"
    assert [line["step"] for line in metrics] == [1, 2]
    assert (cluster.testbed.shared / "run" / "policy").is_dir()


@pytest.mark.long
def test_it_resumes_with_weights_sent_between_the_hosts(cluster):
    """Rollout moves to sim, with a Gloo group over two different interfaces. test_slurm does it by object stores."""
    overrides = [
        "num_steps=3",
        "weight_sync.transport=collective",
        "weight_sync.is_checksum_verified=true",
        "placement.roles.rollout.on=sim",
    ]
    done, nodes, metrics = _run(cluster, *overrides)
    assert nodes["rollout/0"] == "sim" and nodes["actor/0"] == "train"
    assert "resumed" in done.stdout and [line["step"] for line in metrics] == [1, 2, 3]
    assert abs(metrics[-1]["rollout_logprob_gap"]) < 1e-4  # rollout acted with the actor's weights


class Stopper(threading.Thread):
    """Stops a worker on a host as soon as a counter in its record is above 0."""

    def __init__(self, host, beats, counter):
        super().__init__(daemon=True)
        self.host, self.beats, self.counter, self.pid = host, beats, counter, None

    def run(self):
        end = time.monotonic() + 300
        while self.pid is None and time.monotonic() < end:
            lines = self.beats.read_text().splitlines() if self.beats.exists() else []
            started = [beat for beat in map(json.loads, lines[:-1]) if beat["counters"].get(self.counter)]
            if started:
                self.host.check("kill", "-STOP", str(started[-1]["pid"]))
                self.pid = started[-1]["pid"]
            time.sleep(0.2)


@pytest.mark.long
def test_demonstrations_of_one_host_begin_the_policy_of_the_other(cluster):
    """Episodes of sim's env workers, with which train's actor workers imitate before the first step."""
    run = cluster.testbed.shared / "imitating"
    done = cluster.program("train", "policy.kind=openvla_oft", f"output_dir={run}")
    assert done.returncode == 0 and "policy after imitation" in done.stdout, done.stdout + done.stderr
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2] and abs(metrics[-1]["rollout_logprob_gap"]) < 1e-4


@pytest.mark.long
def test_the_archive_of_an_alarm_has_the_stacks_of_both_hosts(cluster):
    """An env worker on sim is stopped; the driver on train asks the sentinels of both."""
    run = cluster.testbed.shared / "stalled"
    stopper = Stopper(cluster.testbed["sim"], run / "board" / "env-1.jsonl", "chunk_steps")
    stopper.start()
    quick = ["watchdog.floor_s=4", "watchdog.heartbeat_s=0.5", "recovery.max_env_restarts=0"]
    done = cluster.program("train", *quick, f"output_dir={run}", "num_steps=500", "checkpoint.every_steps=1000")
    stopper.join(timeout=10)
    assert done.returncode == ExitStatus.stalled, done.stdout + done.stderr
    assert f"env[1]@sim (pid {stopper.pid}) is stopped (state T)" in done.stderr, done.stderr
    (path,) = (run / "alarms").iterdir()
    with tarfile.open(path) as archive:
        stacks = {host: archive.extractfile(f"{host}/stacks.txt").read().decode() for host in ("train", "sim")}
    assert "env/1" in stacks["sim"] and "env/0" in stacks["sim"] and "actor/" not in stacks["sim"]
    assert all(worker in stacks["train"] for worker in ("actor/0", "actor/1", "rollout/0", "driver/0"))


def test_a_lost_host_is_detected_in_seconds(cluster):
    train, sim = cluster.testbed["train"], cluster.testbed["sim"]
    assert set(json.loads(train.check(PYTHON, "-c", JOINED))) == {"train", "sim"}
    with sim.cut():
        start = time.monotonic()
        while "sim" in json.loads(train.check(PYTHON, "-c", JOINED)):
            assert time.monotonic() - start < 15
            time.sleep(0.5)
    cluster.nodes["sim"].wait(timeout=30)  # back on the network, its Ray learns that the cluster has given it up
    assert "Ray has ended on node sim" in cluster.log("sim").read_text()
