"""Nodes start and end: missing nodes are named, no process is left, the status of the command counts."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cluster.cluster import DUAL_NODE, START, declare_accelerators
from tests.cluster.testbed import FRESH_TMP, PYTHON


def _left(host) -> tuple[list[str], list[str]]:
    """Return the processes and files of a host that should not be there."""
    processes = host.check("ps", "-eo", "comm").split()[1:]
    return [name for name in processes[1:] if name != "ps"], host.check("ls", "/tmp", "/dev/shm").split()


# Ray's agents that lost both raylet and head give up after a minute, and hold no port that others need.
AGENTS = {"ray::DashboardA", "ray::RuntimeEnv"}
CLEAN = ([], ["/dev/shm:", "/tmp:", *FRESH_TMP])


@pytest.mark.long
def test_missing_nodes_are_named_at_the_deadline(two_hosts):
    declare_accelerators(two_hosts)
    train = two_hosts["train"]
    words = [*START, *DUAL_NODE, "cluster.start_deadline_s=8", "node.expected=[train,sim.cluster]"]
    done = train.run([*words, "--", "echo", "it ran"], timeout=60)
    assert done.returncode == 3 and "it ran" not in done.stdout
    assert "1 of 2 nodes have not joined within 8 s: sim." in done.stderr
    assert "These have joined: train (10.77.0.1)." in done.stderr
    assert _left(train) == CLEAN


def test_the_commands_status_counts_and_nothing_is_left(two_hosts):
    declare_accelerators(two_hosts)
    train, sim = two_hosts["train"], two_hosts["sim"]
    log = two_hosts.shared / "sim-status.log"
    worker = sim.start([*START, *DUAL_NODE], log=log)
    command = (
        "import os, signal; print('at', os.environ['RAY_ADDRESS'], flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = train.run([*START, *DUAL_NODE, "--", PYTHON, "-c", command], timeout=90)
    assert done.returncode == 128 + signal.SIGKILL and "at 10.77.0.1:6379" in done.stdout
    assert worker.wait(timeout=30) == 0 and "the head has ended" in log.read_text()
    assert _left(train) == CLEAN and _left(sim) == CLEAN


@pytest.mark.long
def test_ray_ends_with_a_killed_start_and_the_next_one_cleans_up(two_hosts):
    declare_accelerators(two_hosts)
    train = two_hosts["train"]
    log = two_hosts.shared / "killed.log"
    train.check("mkdir", "-p", "/tmp/ray/session_of_somebody_else")
    node = train.start([*START, *DUAL_NODE], log=log)
    _wait(log, "head of a new cluster")
    modes = train.check(
        "bash", "-c", "stat -c '%a' /tmp/rlrun-node-*; ls /tmp/rlrun-node-*/r/session_2*/sockets"
    ).split()
    assert modes[0] == "700" and "raylet" in modes, "nobody else reaches the sockets below"
    assert train.stop(node, signal.SIGKILL) != 0
    end = time.monotonic() + 30
    while set(_left(train)[0]) - AGENTS and time.monotonic() < end:
        time.sleep(0.2)
    processes, files = _left(train)
    assert set(processes) <= AGENTS and any(name.startswith("rlrun-node-") for name in files)

    node = train.start([*START, *DUAL_NODE], log=log)
    _wait(log, "left by a node that is gone")
    _wait(log, "head of a new cluster", times=2)
    stopped = train.run([PYTHON, "-m", "rlrun.node", "stop", *DUAL_NODE])
    assert stopped.returncode == 0 and stopped.stdout == "stopped 1 of 1 nodes\n"
    assert node.wait(timeout=10) == 0
    train.check("rmdir", "/tmp/ray/session_of_somebody_else", "/tmp/ray")
    processes, files = _left(train)
    assert set(processes) <= AGENTS and files == CLEAN[1]


def test_a_full_disk_is_refused_before_ray_starts(two_hosts):
    declare_accelerators(two_hosts)
    sim = two_hosts["sim"]
    with sim.filled("/tmp", leave_bytes=90_000_000):
        done = sim.run([*START, *DUAL_NODE])
    assert done.returncode == 3 and "No folder of sim has enough space for Ray" in done.stderr
    assert "/tmp: 0 MB until the disk is 95 % full, 400 MB needed" in done.stderr
    assert "placement.nodes.sim.temp_dir" in done.stderr


@pytest.mark.long
def test_a_worker_with_a_wrong_hosts_file_starts_no_second_cluster(two_hosts):
    """With and without node.is_head; 127.0.1.1 is right for its own name, but not for the head's."""
    declare_accelerators(two_hosts)
    sim = two_hosts["sim"]
    with sim.hosts_file("127.0.0.1 localhost\n127.0.1.1 sim train\n"):
        for words in ([], ["node.is_head=false"]):
            done = sim.run([*START, *DUAL_NODE, *words])
            assert done.returncode == 3 and "head of a new cluster" not in done.stdout
            assert "'train' resolves to 127.0.1.1 here, which is this machine itself" in done.stderr
            assert "/etc/hosts" in done.stderr
    with sim.hosts_file("127.0.1.1 sim\nfd00::1 train\n"):
        done = sim.run([*START, *DUAL_NODE])
        assert done.returncode == 3 and "'train' resolves to fd00::1, an IPv6 address" in done.stderr


def _wait(log, text: str, times: int = 1) -> None:
    end = time.monotonic() + 200
    while not log.exists() or log.read_text().count(text) < times:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
