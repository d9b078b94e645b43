"""The command line and environment of Ray on a node."""

from __future__ import annotations

import os
import socket
from collections import namedtuple
from dataclasses import replace

import pytest

from rlrun.cluster import node_process as process
from rlrun.cluster.node_process import (
    NodeSettings,
    check_ports,
    check_shared_memory,
    ray_environment,
    ray_start_command,
)
from rlrun.system.errors import ExitStatus, RunError

HEAD = NodeSettings("train", "10.77.0.1", "10.77.0.1:7000", True, "/tmp/x", None, 10**8, 8, None, 10.0)
SIM = replace(HEAD, name="sim", address="10.77.0.2", is_head=False, spill_dir="/data/x")


def options(settings: NodeSettings) -> dict[str, str]:
    return dict(word[2:].partition("=")[::2] for word in ray_start_command(settings) if word.startswith("--"))


def test_head_and_worker():
    head, sim = options(HEAD), options(SIM)
    assert "head" in head and head["port"] == "7000" and head["include-dashboard"] == "false"
    assert "head" not in sim and sim["address"] == "10.77.0.1:7000"
    assert sim["object-spilling-directory"] == "/data/x" and "object-spilling-directory" not in head
    assert (head["node-name"], head["node-ip-address"], head["num-gpus"]) == ("train", "10.77.0.1", "8")


def test_every_listener_is_in_the_range_of_ports():
    given = options(replace(HEAD, ports="20000-20099"))
    fixed = {name: int(value) for name, value in given.items() if name.endswith("-port") and name != "max-worker-port"}
    assert len(set(fixed.values())) == len(fixed) == 8
    assert all(20000 <= port <= 20099 for port in fixed.values()) and given["max-worker-port"] == "20099"
    for wrong in ("20000", "20000-20010", "80-900", "a-b", "65000-70000"):
        with pytest.raises(RunError, match="no range of ports"):
            ray_start_command(replace(HEAD, ports=wrong))


def test_a_lost_node_is_detected_in_time():
    set_ = ray_environment(HEAD)
    period, timeout = (int(set_[f"RAY_health_check_{name}_ms"]) for name in ("period", "timeout"))
    assert (period + timeout) * int(set_["RAY_health_check_failure_threshold"]) == 10_000


def test_a_token_is_required_and_on_no_command_line(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef")
    for settings in (HEAD, SIM):
        assert ray_environment(settings)["RAY_AUTH_MODE"] == "token"
        assert not any("0123456789abcdef" in word for word in ray_start_command(settings))


def test_workers_share_a_core_fairly_unless_it_is_set(monkeypatch):
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    assert ray_environment(HEAD)["RAY_worker_niceness"] == "0"
    monkeypatch.setenv("RAY_worker_niceness", "10")
    assert ray_environment(HEAD)["RAY_worker_niceness"] == "10"


def test_ports_are_checked_before_ray_starts():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        head = replace(HEAD, head=f"10.77.0.1:{port}")
        with pytest.raises(
            RunError, match=rf"Port {port} of train, .* is taken by .* \(pid {os.getpid()}\)"
        ) as refusal:
            check_ports(head)
        assert refusal.value.key == "cluster.address" and refusal.value.exit_status == ExitStatus.placement
        check_ports(replace(head, is_head=False))  # the port is the head's, on another node
        with pytest.raises(RunError, match=f"Port {port} of sim") as refusal:
            check_ports(replace(SIM, ports=f"{port - 3}-{port + 97}"))
        assert refusal.value.key == "node.ports"
    check_ports(head)


def test_a_store_beyond_shared_memory_is_refused(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(process.shutil, "disk_usage", lambda path: usage(100, 60, 40))
    check_shared_memory(40)
    with pytest.raises(RunError, match="does not fit into /dev/shm"):
        check_shared_memory(41)
