"""Measurements of a node and between two nodes, on this machine, with real faults that need no root."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.doctor.collective import Job, all_reduce
from rlrun.doctor.inspector import Inspector, PortProbe, Responder, probe_ports
from rlrun.doctor.measure import MARKER, measure
from rlrun.doctor.node_request import Folder, Input, NodeRequest, node_requests
from rlrun.doctor.trials import planned_pairs
from rlrun.placement.inventory import Inventory, NodeInfo
from rlrun.placement.planner import plan
from rlrun.placement.workload import Workload
from tests.standins.nvidia_smi import stand_in

HERE = "127.0.0.1"


def node_request(node: str = "here", folders=(), inputs=(), is_thorough: bool = False, writes_markers: bool = False):
    return NodeRequest(node, HERE, {"actor": 1}, None, tuple(folders), tuple(inputs), is_thorough, writes_markers)


def free_port() -> int:
    with socket.create_server((HERE, 0)) as probe:
        return probe.getsockname()[1]


# --- a node -------------------------------------------------------------------------------------


def test_this_machine_is_measured_quickly() -> None:
    config = RunConfig()
    (job,) = node_requests(config, Inventory((NodeInfo("here", HERE, 2, 10**10, ()),)), None, is_thorough=False)
    started = time.perf_counter()
    facts = measure(job)
    assert time.perf_counter() - started < 1.0  # it runs before every training run
    assert facts.interface_of(HERE) is not None and facts.versions["torch"] and "torch" in facts.versions
    assert 0 < facts.free_memory_bytes <= facts.memory_bytes
    assert {folder.purpose for folder in facts.folders} == {"temp", "spill", "shared memory", "cache"}


def test_folders(tmp_path: Path) -> None:
    folders = [Folder("temp", str(tmp_path)), Folder("run", str(tmp_path / "not" / "yet")), Folder("spill", "/proc/1")]
    temp, run, spill = measure(node_request(folders=folders, is_thorough=True)).folders
    assert temp.error is None and 0 < temp.free_bytes < temp.total_bytes and temp.write_bytes_per_s > 0
    assert run.error is None and not (tmp_path / "not").exists()
    assert spill.error
    assert list(tmp_path.iterdir()) == []


def test_markers_are_seen_and_removed(tmp_path: Path) -> None:
    folder = Folder("cache", str(tmp_path))
    inspectors = [Inspector(node_request(name, [folder], writes_markers=True)) for name in ("a", "b")]
    for inspector in inspectors:
        inspector.measure()
    assert inspectors[0].markers() == {"cache": ("a", "b")}
    inspectors[1].close()
    assert inspectors[0].markers() == {"cache": ("a",)}
    inspectors[0].close()
    assert not list(tmp_path.glob(MARKER + "*"))


def test_inputs_are_told_apart(tmp_path: Path) -> None:
    digests = set()
    for number, tail in enumerate(("same", "same", "other")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"0" * 300_000 + tail.encode().ljust(8))
        (facts,) = measure(node_request(inputs=[Input("policy.path", str(folder))])).inputs
        assert facts.num_files == 1 and facts.num_bytes == 300_008
        digests.add(facts.digest)
    assert len(digests) == 2
    (missing,) = measure(node_request(inputs=[Input("policy.path", str(tmp_path / "gone"))])).inputs
    assert missing.num_files == 0


def test_gpus_and_their_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase $1 in\n"
        '--query-gpu=*) echo "0, GPU-a, NVIDIA A100-SXM4-80GB, 550.54.15, 81920, 67000";'
        ' echo "1, GPU-b, NVIDIA A100-SXM4-80GB, 550.54.15, 81920, [N/A]";;\n'
        '*) echo "GPU-a, 4711, /usr/bin/python3, 14000";;\nesac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    first, second = measure(node_request()).gpus
    assert (first.index, first.driver, first.free_bytes) == (0, "550.54.15", 67000 * 2**20)
    assert [(p.pid, p.name, p.memory_bytes) for p in first.processes] == [(4711, "python3", 14000 * 2**20)]
    assert second.free_bytes is None and second.processes == ()


@pytest.mark.parametrize(
    ("gpu", "process", "told"),
    [
        ("0, GPU-a, GB10, [N/A], [N/A], [N/A]", "GPU-a, [N/A], [N/A], [N/A]", ""),
        ("[N/A], GPU-a, Orin, 540, [Not Supported], [Not Supported]", "", ""),
        ("Failed to initialize NVML", "", "Failed to initialize NVML"),
    ],
)
def test_what_nvidia_smi_does_not_say(
    gpu: str, process: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'case $1 in --query-gpu=*) echo "{gpu}";; *) printf "{process}";; esac'
    stand_in(tmp_path, monkeypatch, script)
    facts = measure(node_request())
    assert told in facts.gpu_fault and bool(told) == (not facts.gpus)
    for found in facts.gpus:
        assert (found.index, found.total_bytes, found.free_bytes) == (0, None, None)
        assert all(held.pid is None and held.memory_bytes is None for held in found.processes)


def test_environment_takes_only_what_checks_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "NCCL_DEBUG", "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK", "SECRET_TOKEN"):
        monkeypatch.setenv(name, "x")
    seen = measure(node_request()).environment
    assert {"HTTP_PROXY", "NCCL_DEBUG", "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK"} <= set(seen)
    assert "SECRET_TOKEN" not in seen and "PATH" not in seen


def test_ports_that_workers_will_open() -> None:
    """On the node of actor rank 0: the store's port, and the next one for the collective transport."""
    port = free_port()
    config = RunConfig()
    config.actor.num_workers, config.cluster.store_port = 2, port
    inventory = Inventory((NodeInfo("here", HERE, 2, 10**10, ()),))
    (job,) = node_requests(config, inventory, plan(Workload(config), inventory), is_thorough=False)
    assert [(request.key, request.port) for request in job.ports] == [("cluster.store_port", port)]
    config.weight_sync.transport = WeightTransport.collective
    with socket.create_server((HERE, port + 1)):
        (job,) = node_requests(config, inventory, plan(Workload(config), inventory), is_thorough=False)
        store, mesh = measure(dataclasses.replace(job, simulator=None)).ports
    assert store.holder is None and mesh.key == "cluster.store_port + 1" and f"(pid {os.getpid()})" in mesh.holder


# --- links --------------------------------------------------------------------------------------


def test_responder_sends_name_and_clock() -> None:
    responder = Responder("there", HERE)
    try:
        good, other = probe_ports(
            "here", [PortProbe(n, "any port", HERE, responder.port, True) for n in ("there", "else")], 2.0
        )
    finally:
        responder.close()
    assert good.error is None and abs(good.skew_s) < 0.5 and good.source_address == HERE
    assert other.error == "answered by node there"


def test_a_closed_responder_frees_its_port() -> None:
    port = free_port()
    Responder("there", HERE, port).close()
    (refused,) = probe_ports("here", [PortProbe("there", "store", HERE, port, True)], 2.0)
    assert refused.error == "refused"
    Responder("there", HERE, port).close()


def test_a_port_that_does_not_answer() -> None:
    with socket.socket() as full:  # a full backlog drops new connections
        full.bind((HERE, 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex((HERE, port))
        (link,) = probe_ports("here", [PortProbe("there", "any port", HERE, port, False)], 0.5)
        for filler in fillers:
            filler.close()
    assert link.error == "no answer"


def test_planned_pairs() -> None:
    assert planned_pairs(["a"]) == []
    assert planned_pairs(["a", "b", "c"]) == [("a", "b"), ("a", "c"), ("b", "c")]
    many = [str(i) for i in range(100)]
    assert len(planned_pairs(many)) == 99 + 98 and {node for pair in planned_pairs(many) for node in pair} == set(many)


# --- collectives --------------------------------------------------------------------------------


def job(node: str, pairs, port: int, interface: str = "lo", timeout_s: float = 5.0) -> Job:
    return Job(node, pairs, "gloo", interface, HERE, port, node == "a", timeout_s, None)


@pytest.mark.skipif(sys.platform != "linux" or not os.path.exists("/sys/class/net/lo"), reason="loopback is called lo")
def test_all_reduce_between_two_processes_and_one_that_cannot() -> None:
    port, pairs = free_port(), [("a", "b"), ("a", "c")]
    jobs = [
        job("a", pairs, port),
        job("b", [("a", "b")], port),
        job("c", [("a", "c")], port, interface="nosuch0"),
    ]
    with ThreadPoolExecutor() as pool:
        of_a, of_b, of_c = pool.map(lambda one: all_reduce([one]), jobs)
    assert [pair.error for pair in of_b] == [None]
    assert {(pair.source, pair.target): pair.error is None for pair in of_a} == {("a", "b"): True, ("a", "c"): False}
    assert "nosuch0" in of_c[0].error
