"""Every check of the doctor passes on two healthy nodes and reports the faults that it is made for."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from rlrun.config.schema import WeightTransport
from rlrun.data.fit import World, compare
from rlrun.data.lerobot.reader import DatasetInfo
from rlrun.doctor import cross_node_checks, node_checks
from rlrun.doctor.check import ClusterState, Finding, Status, failures
from rlrun.doctor.checks import check_names, markdown_table, own_checks, run_checks
from rlrun.doctor.cross_node_checks import matrix
from rlrun.doctor.facts import ClusterFacts, GpuFacts, GpuProcess, InputFacts, InterfaceFacts, PortFacts
from rlrun.doctor.report import as_json, summary
from rlrun.doctor.trials import Member, jobs
from rlrun.edges.spaces import Spaces
from rlrun.placement.budget import budget
from rlrun.placement.inventory import Accelerator, Inventory
from rlrun.placement.planner import plan
from rlrun.placement.workload import Workload
from rlrun.system.errors import RunError
from rlrun.system.machine_load import load_factor
from tests.unit.doctor.healthy import (
    GB,
    NODES,
    config,
    healthy,
    with_environment,
    with_folder,
    with_gpu,
    with_interface,
    with_links,
    with_node,
    with_package,
    with_pairs,
    with_paths,
    with_renderer,
    with_simulator,
    with_spaces,
    with_versions,
    without_version,
)


def unresponsive() -> ClusterState:
    cluster = healthy()
    facts = ClusterFacts(cluster.facts.nodes[:1], unresponsive={"peer": "no answer within 15 s"})
    return dataclasses.replace(cluster, facts=facts)


def refused() -> ClusterState:
    made = config()
    made.env.simulator = "omnigibson"
    with pytest.raises(RunError) as refusal:
        plan(Workload(made), Inventory(NODES))
    return dataclasses.replace(healthy(), config=made, plan=None, budget=None, refusal=refusal.value)


def interface_down() -> ClusterState:
    down = InterfaceFacts("ens7f1", ("10.77.0.2",), is_up=False)
    return with_node("peer", lambda node: {"interfaces": (node.interfaces[0], down)})


def leftover(free_bytes: int) -> ClusterState:
    held = GpuProcess(4711, "python", 80 * GB - free_bytes)
    return with_gpu("peer", 1, free_bytes=free_bytes, processes=(held,))


def other_input(**changes) -> ClusterState:
    return with_node("peer", lambda node: {"inputs": (dataclasses.replace(node.inputs[0], **changes),)})


def unlike(data: DatasetInfo) -> ClusterState:
    whole = with_node("peer", lambda node: {})
    fit = compare(data, World(Spaces(8, None, (), (), 61, 1, cameras=("zed_link",), control_hz=30.0)))
    return dataclasses.replace(whole, facts=dataclasses.replace(whole.facts, fit=fit))


FAILED, WARNING = Status.failed, Status.warning
TEN_BIT_PROXY = {"http_proxy": "http://proxy:3128", "no_proxy": "localhost"}
FAULTS = [  # check, cluster, status, where, words of the cause, words of the fix
    (
        "mtu",
        lambda: with_paths(1500, 1400),
        FAILED,
        "peer -> train",
        ["packets of 1500 bytes from peer to train get lost, 1400 arrive"],
        ["on peer: ip link set dev ens7f1 mtu 1400", "ICMP"],
    ),
    ("answers", unresponsive, FAILED, "peer", ["no answer within 15 s"], ["ray status"]),
    ("placement", refused, FAILED, "train", ["no RT cores", "A100"], ["RTX 4090"]),
    (
        "interface",
        lambda: with_interface("peer", "enp3s0"),
        FAILED,
        "peer",
        ["'enp3s0'", "ens7f1 (10.77.0.2)"],
        ["peer"],
    ),
    (
        "interface",
        lambda: with_interface("peer", "docker0"),
        FAILED,
        "peer",
        ["docker0 reaches no other"],
        ["interface"],
    ),
    ("interface", lambda: with_interface("peer", "lo"), FAILED, "peer", ["lo reaches no other"], ["interface"]),
    ("interface", interface_down, FAILED, "peer", ["ens7f1 is down"], ["ip link set ens7f1 up"]),
    (
        "interface",
        lambda: with_node("peer", lambda node: {"interfaces": node.interfaces[:1]}),
        FAILED,
        "peer",
        ["no interface owns 10.77.0.2"],
        [],
    ),
    (
        "host name",
        lambda: with_node("peer", lambda node: {"host_addresses": ("127.0.1.1",)}),
        WARNING,
        "peer",
        ["resolves to 127.0.1.1", "ens7f1"],
        ["/etc/hosts", "10.77.0.2 peer"],
    ),
    (
        "host name",
        lambda: with_node("peer", lambda node: {"host_addresses": ()}),
        WARNING,
        "peer",
        ["does not resolve"],
        ["echo '10.77.0.2 peer' >> /etc/hosts"],
    ),
    (
        "route",
        lambda: with_links(lambda link: {"source_address": ""} if link.source == "peer" else {}),
        FAILED,
        "peer -> train",
        ["no route to 10.77.0.1"],
        ["ip route get 10.77.0.1"],
    ),
    (
        "route",
        lambda: with_links(lambda link: {"source_address": "172.17.0.1"} if link.source == "peer" else {}),
        FAILED,
        "peer -> train",
        ["leave by docker0", "bound to ens7f1"],
        ["interface=docker0"],
    ),
    (
        "ports",
        lambda: with_links(lambda link: {"error": "no answer"} if link.target == "peer" else {}),
        FAILED,
        "train -> peer",
        ["port 40000 of 10.77.0.2", "drops"],
        ["on peer: nft", "1024-65535 accept"],
    ),
    (
        "ports",
        lambda: with_links(lambda link: {"error": "refused", "purpose": "store"} if link.target == "peer" else {}),
        FAILED,
        "train -> peer",
        ["(store)", "rejects"],
        ["dport 40000 accept"],
    ),
    (
        "ports",
        lambda: with_links(lambda link: {"error": "answered by node other"} if link.target == "peer" else {}),
        FAILED,
        "train -> peer",
        ["answered by node other"],
        ["ip neigh"],
    ),
    (
        "ports",
        lambda: with_links(lambda link: {"milliseconds": 900.0} if link.target == "peer" else {}),
        WARNING,
        "train -> peer",
        ["900 ms"],
        ["ping"],
    ),
    (
        "ports",
        lambda: with_node(
            "train", lambda node: {"ports": (PortFacts("cluster.store_port + 1", 29501, "redis (pid 812)"),)}
        ),
        FAILED,
        "train",
        ["port 29501 (cluster.store_port + 1) is taken by redis (pid 812)"],
        ["on train: ss -ltnp", "cluster.store_port="],
    ),
    (
        "gloo",
        lambda: with_pairs("gloo", None, "no answer"),
        FAILED,
        "train -- peer",
        ["no answer"],
        ["nft", "interface"],
    ),
    ("gloo", lambda: with_pairs("gloo", "no answer", "refused"), FAILED, "train -- peer", ["refused"], ["nft"]),
    ("nccl", lambda: with_pairs("nccl", "no device", "no device"), FAILED, "train -- peer", ["no device"], []),
    (
        "temp disk",
        lambda: with_folder("peer", "temp", free_bytes=4 * GB),
        FAILED,
        "peer",
        ["/tmp is 96.0% full", "95%"],
        ["du -xsh /tmp", "cluster.temp_dir"],
    ),
    (
        "temp disk",
        lambda: with_folder("peer", "temp", error="Read-only file system"),
        FAILED,
        "peer",
        ["/tmp cannot be written: Read-only"],
        ["df -h /tmp"],
    ),
    (
        "spill disk",
        lambda: with_folder("peer", "spill", free_bytes=0),
        FAILED,
        "peer",
        ["/spill is 100.0% full"],
        ["spill"],
    ),
    (
        "spill disk",
        lambda: with_folder("peer", "spill", write_bytes_per_s=5e6),
        WARNING,
        "peer",
        ["writes 5.0 MB/s"],
        ["local disk"],
    ),
    (
        "shared memory",
        lambda: with_folder("peer", "shared memory", total_bytes=64_000_000, free_bytes=64_000_000),
        FAILED,
        "peer",
        ["64.0 MB for an object store of 1.0 GB"],
        ["--shm-size", "cluster.object_store_bytes=51200000"],
    ),
    (
        "run disk",
        lambda: with_folder("peer", "run", error="Permission denied"),
        FAILED,
        "peer",
        ["/data/run cannot be written: Permission denied"],
        ["ls -ld /data/run"],
    ),
    (
        "run disk",
        lambda: with_folder("peer", "cache", free_bytes=10**6),
        WARNING,
        "peer",
        ["1.0 MB left"],
        ["cache_dir"],
    ),
    (
        "shared folders",
        lambda: with_folder("peer", "run", seen=("peer",)),
        FAILED,
        "peer",
        ["what train writes to /data/run does not appear"],
        ["output_dir"],
    ),
    (
        "memory",
        lambda: with_node("peer", lambda node: {"free_memory_bytes": 10**8}),
        FAILED,
        "peer",
        ["100.0 MB of 500.0 GB is free"],
        ["sbatch --mem"],
    ),
    (
        "accelerators",
        lambda: with_node("peer", lambda n: {"gpus": n.gpus[:1]}),
        FAILED,
        "peer",
        ["[1]", "lists 1"],
        ["-L"],
    ),
    (
        "accelerators",
        lambda: with_versions("peer", torch_CUDA="13.0"),
        FAILED,
        "peer",
        ["driver 580", "550.54.15"],
        ["install driver 580", "--index-url https://download.pytorch.org/whl/cu126 torch=="],
    ),
    (
        "accelerators",
        lambda: with_node("peer", lambda n: {"versions": {"torch": "2.13.0+cpu"}}),
        FAILED,
        "peer",
        ["2.13.0+cpu was built without CUDA"],
        ["pip install"],
    ),
    (
        "accelerators",
        lambda: with_gpu("peer", 0, driver="570.1"),
        WARNING,
        "",
        ["550.54.15 on train", "570.1 on peer"],
        [],
    ),
    (
        "accelerators",
        lambda: with_environment("peer", RLRUN_FAKE_ACCELERATORS="A100:2:80"),
        WARNING,
        "peer",
        ["not there"],
        ["unset RLRUN_FAKE_ACCELERATORS"],
    ),
    (
        "accelerator memory",
        lambda: leftover(10**6),
        FAILED,
        "peer",
        ["accelerator 1", "pid 4711 python"],
        ["kill 4711"],
    ),
    ("accelerator memory", lambda: leftover(75 * GB), WARNING, "peer", ["held by others", "pid 4711"], ["kill 4711"]),
    (
        "accelerator memory",
        lambda: with_gpu("peer", 1, free_bytes=60 * GB),
        WARNING,
        "",
        ["actor workers is uneven", "75% on peer accelerator 1"],
        ["nvidia-smi"],
    ),
    (
        "accelerator memory",
        lambda: with_gpu("peer", 1, free_bytes=None, total_bytes=None),
        WARNING,
        "peer",
        ["does not say how much memory accelerator 1"],
        ["nvidia-smi -q"],
    ),
    (
        "accelerators",
        lambda: with_node("peer", lambda node: {"gpus": (), "gpu_fault": "it ended with status 9: 'no driver'"}),
        WARNING,
        "peer",
        ["status 9: 'no driver'", "are not compared"],
        ["dmesg"],
    ),
    (
        "versions",
        lambda: with_versions("peer", python="3.12.1"),
        FAILED,
        "peer",
        ["python is 3.12.1, elsewhere 3.11.7"],
        [],
    ),
    ("versions", lambda: with_versions("peer", python="3.11.9"), WARNING, "peer", ["3.11.9"], ["use Python 3.11.7"]),
    (
        "versions",
        lambda: with_versions("peer", torch="2.12.0+cu128"),
        FAILED,
        "peer",
        ["torch is 2.12.0+cu128, elsewhere 2.13.0+cu128"],
        ["pip install 'torch==2.13.0' --index-url https://download.pytorch.org/whl/cu128"],
    ),
    (
        "versions",
        lambda: with_versions("peer", transformers="5.19.0"),
        FAILED,
        "peer",
        ["transformers is 5.19.0"],
        ["pip install 'transformers==5.23.0'"],
    ),
    ("versions", lambda: with_versions("peer", rlrun_sources="def"), FAILED, "peer", ["sources"], ["same commit"]),
    (
        "inputs",
        lambda: other_input(num_files=0),
        FAILED,
        "peer",
        ["policy.path: there is nothing at /models/oft"],
        ["rsync -a train:/models/oft/ /models/oft/"],
    ),
    (
        "inputs",
        lambda: other_input(digest="000"),
        FAILED,
        "peer",
        ["digest 000", "on train"],
        ["rsync -a --delete train:"],
    ),
    (
        "data and policy",
        lambda: unlike(DatasetInfo(("zed_link",), ((64, 64),), 61, 8, fps=10.0)),
        FAILED,
        "",
        ["10 frames a second, the world 30"],
        ["env.action_hz=10"],
    ),
    (
        "clock",
        lambda: with_links(lambda link: {"skew_s": 300.0 if link.target == "peer" else -300.0}),
        FAILED,
        "peer",
        ["300 s ahead of that of train"],
        ["timedatectl"],
    ),
    (
        "clock",
        lambda: with_links(lambda link: {"skew_s": -8.0 if link.target == "peer" else 8.0}),
        WARNING,
        "peer",
        ["8 s behind that of train"],
        ["timedatectl"],
    ),
    (
        "environment",
        lambda: with_environment("peer", SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK="true"),
        WARNING,
        "peer",
        ["ENABLES it from 0.5.7"],
        ["unset SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK"],
    ),
    (
        "environment",
        lambda: with_environment("peer", GLOO_SOCKET_IFNAME="ens7f1,docker0"),
        WARNING,
        "peer",
        ["not a list"],
        ["unset GLOO_SOCKET_IFNAME"],
    ),
    (
        "environment",
        lambda: with_environment("peer", CUDA_DEVICE_ORDER="FASTEST_FIRST"),
        WARNING,
        "peer",
        ["CUDA_DEVICE_ORDER=FASTEST_FIRST", "as nvidia-smi does"],
        ["unset CUDA_DEVICE_ORDER"],
    ),
    (
        "environment",
        lambda: with_environment("peer", NCCL_SOCKET_IFNAME="eth1"),
        WARNING,
        "peer",
        ["rlrun overrides it in its"],
        ["placement.nodes.<group>.interface"],
    ),
    ("environment", lambda: with_environment("peer", GLOO_SOCKET_IFNAME="^lo"), WARNING, "peer", ["or ^"], ["unset"]),
    ("environment", lambda: with_environment("peer", GLOO_SOCKET_IFNAME="eth9"), WARNING, "peer", ["no interface"], []),
    (
        "environment",
        lambda: with_environment("peer", **TEN_BIT_PROXY),
        WARNING,
        "peer",
        ["no_proxy lacks 10.77.0.1"],
        ["export no_proxy=localhost,10.77.0.1"],
    ),
    (
        "environment",
        lambda: with_environment("peer", CUDA_VISIBLE_DEVICES="0"),
        WARNING,
        "peer",
        ["hides"],
        ["unset CUDA"],
    ),
    (
        "environment",
        lambda: with_environment("peer", NCCL_IB_DISABLE="1"),
        WARNING,
        "",
        ["1 on peer", "unset on train"],
        [],
    ),
    (
        "environment",
        lambda: with_environment("peer", RAY_AUTH_MODE="disabled"),
        WARNING,
        "",
        ["disabled on peer", "run code"],
        ["export RAY_AUTH_MODE=token"],
    ),
    (
        "environment",
        lambda: with_node("peer", lambda node: {"niceness": 15}),
        WARNING,
        "peer",
        ["niceness 15"],
        ["export RAY_worker_niceness=0"],
    ),
    (
        "environment",
        lambda: with_environment("peer", TMPDIR="scratch"),
        WARNING,
        "peer",
        ["not an absolute path"],
        ["unset"],
    ),
    (
        "simulator interpreter",
        lambda: with_simulator(error="No such file or directory"),
        FAILED,
        "peer",
        ["/opt/omnigibson/bin/python does not start", "No such file"],
        ["python="],
    ),
    (
        "simulator interpreter",
        lambda: with_simulator(python_version="3.12.1"),
        FAILED,
        "peer",
        ["Python 3.12.1", "3.10"],
        ["docs/omnigibson.md"],
    ),
    (
        "simulator interpreter",
        lambda: with_simulator(packages={"omnigibson": "3.7.2", "isaacsim": "4.5", "bddl": "3.7.0", "numpy": "1.26"}),
        FAILED,
        "peer",
        ["no msgpack"],
        ["pip install msgpack"],
    ),
    *(
        (
            "simulator packages",
            lambda found=found: with_simulator(packages={"numpy": "1", "msgpack": "1", **found}),
            FAILED,
            "peer",
            [words],
            ["docs/omnigibson.md"],
        )
        for found, words in (
            ({}, "OmniGibson is not installed"),
            ({"omnigibson": "1.1.1", "isaacsim": "4.1", "bddl": "3.6"}, "has no R1Pro"),
            ({"omnigibson": "3.7.2", "bddl": "3.7.0"}, "Isaac Sim is not installed"),
            ({"omnigibson": "3.7.2", "isaacsim": "4.5"}, "bddl is not installed"),
        )
    ),
    (
        "simulator packages",
        lambda: with_simulator(python_version="3.11.9"),
        WARNING,
        "peer",
        ["OmniGibson 3.7.2 under Python 3.11"],
        [],
    ),
    ("simulator graphics", lambda: with_simulator("NVIDIA H100 80GB HBM3"), FAILED, "peer", ["no RT cores"], ["RTX"]),
    (
        "simulator graphics",
        lambda: with_simulator(driver="470.82.01"),
        FAILED,
        "peer",
        ["driver 535", "470.82.01"],
        ["install driver"],
    ),
    (
        "simulator graphics",
        lambda: with_simulator(vulkan_icds=()),
        FAILED,
        "peer",
        ["nvidia_icd.json"],
        ["NVIDIA_DRIVER_CAPABILITIES"],
    ),
    (
        "simulator graphics",
        lambda: with_simulator(missing_libraries=("Xext",)),
        FAILED,
        "peer",
        ["missing: Xext"],
        ["libxext6"],
    ),
    (
        "simulator data",
        lambda: with_simulator(has_scene=False),
        FAILED,
        "peer",
        ["house_double_floor_lower", "/data/behavior"],
        ["OMNIGIBSON_DATA_PATH"],
    ),
    (
        "renderer",
        lambda: with_renderer(device="", error="the renderer gave no image: killed by SIGSEGV"),
        FAILED,
        "peer",
        ["the renderer gave no image: killed by SIGSEGV"],
        ["libopengl0", "env.renderer=raycast"],
    ),
    (
        "optional packages",
        lambda: with_package("ModuleNotFoundError: No module named 'bitsandbytes'"),
        FAILED,
        "peer",
        ["bitsandbytes, which actor.optimizer needs", "No module named"],
        ["rlrun[bitsandbytes]"],
    ),
    (
        "optional packages",
        lambda: with_package("/nowhere/python does not start: No such file or directory", is_started=False),
        FAILED,
        "peer",
        ["actor.optimizer: /nowhere/python does not start: No such file or directory"],
        ["=<the path of a Python on this node>"],
    ),
    ("optional packages", lambda: with_package("", True), WARNING, "peer", ["within 30 s"], ["import bitsandbytes"]),
    (
        "environment spaces",
        lambda: with_spaces(num_images=0),
        FAILED,
        "peer",
        ["no images", "policy.kind=cnn"],
        ["policy.kind=mlp"],
    ),
    (
        "environment spaces",
        lambda: with_spaces(error="KeyError: 'task'"),
        FAILED,
        "peer",
        ["KeyError: 'task'"],
        ["env.gymnasium.id"],
    ),
    ("renderer", lambda: with_renderer("libero", error="no EGL"), FAILED, "peer", ["no EGL"], ["libegl1"]),
    ("environment spaces", lambda: with_spaces(is_late=True), WARNING, "peer", ["within 30 s"], ["check-simulator"]),
    (
        "renderer",
        lambda: with_renderer(device="", warning="no image within 12 s: the graphics driver hangs"),
        WARNING,
        "peer",
        ["no image within 12 s"],
        ["env.renderer=raycast"],
    ),
    (
        "renderer",
        lambda: with_renderer(kind="raycast", device="none: ray casting in numpy", warning="egl would be faster: …"),
        WARNING,
        "peer",
        ["egl would be faster"],
        ["libopengl0 libgl1"],
    ),
    (
        "renderer",
        lambda: with_renderer(device="llvmpipe (LLVM 15.0.6, 256 bits)"),
        WARNING,
        "peer",
        ["renders on the CPU (llvmpipe", "A100"],
        ["NVIDIA_DRIVER_CAPABILITIES=graphics"],
    ),
    ("simulator data", lambda: with_simulator(has_key=False), FAILED, "peer", ["omnigibson.key"], ["download"]),
    ("simulator licence", lambda: with_simulator(eula=""), FAILED, "peer", ["OMNI_KIT_ACCEPT_EULA"], ["=YES"]),
]


def test_two_healthy_nodes_pass() -> None:
    findings = run_checks(healthy(), [])
    assert [f for f in findings if f.status is not Status.ok] == []
    assert [f.check for f in findings] == [
        check.name for check in own_checks() if not check.name.startswith(("simulator ", "environment spaces"))
    ]


@pytest.mark.parametrize(
    ("check", "cluster", "status", "where", "cause", "fix"), FAULTS, ids=[f"{f[0]}-{f[4][0][:24]}" for f in FAULTS]
)
def test_a_fault_is_found(check, cluster, status, where, cause, fix) -> None:
    found = [f for f in run_checks(cluster(), []) if f.check == check and f.status is status and f.where == where]
    assert found, [f for f in run_checks(cluster(), []) if f.status is not Status.ok]
    text = " ".join(f"{f.cause}" for f in found)
    assert all(word in text for word in cause), text
    assert all(word in " ".join(f.fix for f in found) for word in fix), [f.fix for f in found]


def test_every_check_has_a_fault_above() -> None:
    assert {fault[0] for fault in FAULTS} == {check.name for check in own_checks()}


def test_every_check_that_can_fail_has_a_failing_fault() -> None:
    only_warn = {check.name for check in own_checks() if check.fails_when.startswith("never")}
    assert {fault[0] for fault in FAULTS if fault[2] is FAILED} == {check.name for check in own_checks()} - only_warn


def test_renderer_and_its_time_are_reported() -> None:
    values = [finding.value for finding in run_checks(with_renderer(), []) if finding.check == "renderer"]
    assert values == ["peer: NVIDIA A100-SXM4-80GB/PCIe/SSE2, 833 images/s"]


def test_proxies_that_exclude_the_nodes_pass() -> None:
    excluded = with_environment("peer", http_proxy="http://proxy:3128", no_proxy="localhost,10.77.0.0/24")
    assert not [f for f in run_checks(excluded, []) if f.check == "environment" and f.status is not Status.ok]


def test_the_share_of_a_slurm_job_is_no_harmful_variable() -> None:
    def warned(**variables: str) -> list[Status]:
        found = run_checks(with_environment("peer", **variables), ["placement"])
        return [one.status for one in found if one.check == "environment" and "CUDA_VISIBLE_DEVICES" in one.cause]

    assert warned(CUDA_VISIBLE_DEVICES="1", SLURM_JOB_ID="4711") == []
    assert warned(CUDA_VISIBLE_DEVICES="1") == warned(CUDA_VISIBLE_DEVICES="") == [WARNING]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("node1", "127.0.0.1 localhost node1\n::1 localhost node1 ip6\n", "127.0.0.1 localhost\n::1 localhost ip6\n"),
        (
            "node1.lab.org",
            "127.0.0.1\tlocalhost\n127.0.1.1\tnode1.lab.org node1\n10.0.0.9 node1xlab.org\n",
            "127.0.0.1\tlocalhost\n127.0.1.1 node1\n10.0.0.9 node1xlab.org\n",
        ),
        ("node1", "127.0.0.1 localhost\n127.0.1.1 node10 node1-b\n", "127.0.0.1 localhost\n127.0.1.1 node10 node1-b\n"),
    ],
)
def test_the_remedy_for_a_host_name_of_loopback_keeps_other_names(
    name: str, before: str, after: str, tmp_path: Path
) -> None:
    facts = {"host_name": name, "host_addresses": ("127.0.1.1",)}
    (found,) = node_checks.host_name(with_node("peer", lambda node: facts))
    hosts = tmp_path / "hosts"
    hosts.write_text(before)
    subprocess.run(found.fix.replace("/etc/hosts", str(hosts)), shell=True, check=True)
    assert hosts.read_text() == f"{after}10.77.0.2 {name}\n"


def test_a_node_without_workers_that_need_torch_may_lack_it() -> None:
    cluster = without_version("peer", "torch")
    jobs = tuple(dataclasses.replace(j, workers={"env": 2}) if j.node == "peer" else j for j in cluster.requests)
    findings = run_checks(dataclasses.replace(cluster, requests=jobs), [])
    assert not [f for f in findings if f.check == "versions" and f.status is Status.failed]


@pytest.mark.parametrize("package", ["torch", "ray", "transformers"])
def test_a_package_that_the_workers_need_is_missing(package: str) -> None:
    (found,) = failures(run_checks(without_version("peer", package), []))
    assert (found.check, found.where) == ("versions", "peer")
    assert found.cause == f"{package} is not installed, and the workers there need it"
    assert found.fix.startswith(f"pip install '{package}==") and "missing" not in found.fix


@pytest.mark.parametrize("package", ["sglang", "warp-lang"])
def test_a_package_that_only_one_node_has_has_no_other_version(package: str) -> None:
    for node in ("train", "peer"):
        found = list(cross_node_checks.versions(with_versions(node, **{package: "0.5.6"})))
        assert found == []


def test_missing_inputs_everywhere_have_no_peer_to_copy_from() -> None:
    gone = InputFacts("policy.path", "/models/oft", 0, 0, "")
    cluster = healthy()
    nodes = tuple(dataclasses.replace(node, inputs=(gone,)) for node in cluster.facts.nodes)
    facts = dataclasses.replace(cluster.facts, nodes=nodes)
    found = failures(run_checks(dataclasses.replace(cluster, facts=facts), []))
    assert [f.where for f in found] == ["train", "peer"] and all("policy.path=" in f.fix for f in found)


@pytest.mark.parametrize("cluster_with", [with_spaces, with_renderer, with_simulator])
def test_a_missing_interpreter_is_told_by_the_check_of_packages_alone(cluster_with) -> None:
    cluster = cluster_with(error="/nowhere/python does not start: No such file", is_started=False)
    assert failures(run_checks(cluster, [])) == []


@pytest.mark.parametrize("purpose", ["temp", "shared memory"])
def test_a_single_machine_gets_only_a_warning(purpose: str) -> None:
    cluster = with_folder("train", purpose, total_bytes=10 * 10**6, free_bytes=0)
    facts = ClusterFacts(cluster.facts.nodes[:1])
    alone = dataclasses.replace(cluster, facts=facts, requests=cluster.requests[:1])
    assert [f.status for f in run_checks(alone, []) if f.cause] == [WARNING]


def test_skipped_checks_are_left_out() -> None:
    names = [finding.check for finding in run_checks(with_pairs("gloo", "refused"), ["gloo"])]
    assert "gloo" not in names and "ports" in names
    with pytest.raises(RunError, match="no check 'glue'"):
        check_names(["glue"])


def test_matrix_shows_both_sides() -> None:
    assert matrix(with_pairs("gloo", None, None).facts.pairs, "gloo")[1:] == [
        ["train", "", "2 ms"],
        ["peer", "2 ms", ""],
    ]
    assert matrix(with_pairs("gloo", None, "refused").facts.pairs, "gloo")[1][2] == "refused"


def test_json_holds_findings_and_facts() -> None:
    cluster = with_pairs("gloo", "refused")
    report = json.loads(as_json(cluster, run_checks(cluster, [])))
    assert report["is_fit"] is False and report["facts"]["pairs"][0]["error"] == "refused"
    assert any(row["check"] == "gloo" and row["status"] == "failed" for row in report["findings"])


def test_summary_counts() -> None:
    findings = [
        Finding("a", Status.ok, "", ""),
        Finding("b", Status.failed, "", ""),
        Finding("b", Status.warning, "", ""),
    ]
    assert summary(findings) == "2 checks: 1 ok, 1 warnings, 1 failed"


def test_the_documentation_holds_the_table(repository) -> None:
    assert markdown_table() in (repository / "docs" / "doctor.md").read_text()


def test_a_healthy_simulator_passes() -> None:
    assert not [finding for finding in run_checks(with_simulator(), []) if finding.status is not Status.ok]


def test_device_memory_for_the_planned_simulators() -> None:
    """Two simulators on a 24 GB card need 17 GB while another process holds 10 GB."""
    card = Accelerator("NVIDIA GeForce RTX 4090", 24 * GB, has_rt_cores=True)
    large = tuple(dataclasses.replace(one, memory_bytes=141 * GB) for one in NODES[0].accelerators)
    nodes = (
        dataclasses.replace(NODES[0], accelerators=large),
        dataclasses.replace(NODES[1], accelerators=(card, card)),
    )
    made = config()
    made.env.simulator, made.env.num_workers, made.actor.num_workers = "omnigibson", 4, 2
    made.weight_sync.transport = WeightTransport.object_store
    made.placement.roles = {"actor": "0-1", "rollout": "0-1", "env": {"accelerators": "2-3"}}
    inventory = Inventory(nodes)
    planned = plan(Workload(made), inventory)
    cluster = dataclasses.replace(
        with_simulator(), config=made, plan=planned, budget=budget(Workload(made), planned, inventory)
    )
    held = GpuProcess(4711, "kit", 10 * GB)
    gpus = (
        GpuFacts(0, card.model, "550.54.15", 24 * GB, 14 * GB, (held,)),
        GpuFacts(1, card.model, "550", 24 * GB, 23 * GB),
    )
    peer = dataclasses.replace(cluster.facts.nodes[1], gpus=gpus)
    facts = dataclasses.replace(cluster.facts, nodes=(cluster.facts.nodes[0], peer))
    (fault,) = [
        finding
        for finding in run_checks(dataclasses.replace(cluster, facts=facts), [])
        if finding.check == "accelerator memory" and finding.status is FAILED
    ]
    assert fault.where == "peer" and "the plan needs" in fault.cause and "pid 4711 kit 10.0 GB" in fault.cause


@pytest.mark.parametrize(
    ("load", "status"), [(1.9, FAILED), (14.0, Status.warning)], ids=["as ever", "with too much to do"]
)
def test_what_is_only_late_is_a_warning_on_an_overloaded_host(load: float, status: Status) -> None:
    gone = "peer did not come to the store at 10.77.0.1:29500"
    for late in (with_pairs("gloo", "no answer"), with_pairs("gloo", gone), unresponsive()):
        cluster = dataclasses.replace(late, facts=dataclasses.replace(late.facts, driver_load=load))
        found = [one for one in run_checks(cluster, []) if one.check in ("gloo", "answers") and one.cause]
        assert [one.status for one in found] == [status]
        assert ("load of 14 processes per core" in found[0].cause) is (load > 2)


@pytest.mark.parametrize("load", [0.0, 14.0])
def test_what_is_refused_is_refused_at_any_load(load: float) -> None:
    refusing = with_pairs("gloo", "refused")
    cluster = dataclasses.replace(refusing, facts=dataclasses.replace(refusing.facts, driver_load=load))
    assert [one.check for one in failures(run_checks(cluster, []))] == ["gloo"]


def test_the_limits_of_a_trial_grow_with_the_load() -> None:
    group = [Member(name, name, None) for name in ("train", "peer")]
    calm, busy = (
        jobs(group, "gloo", lambda node: "ens3", "10.77.0.1", 29500, 3.0, factor)["train"][0]
        for factor in (1.0, load_factor(14.0))
    )
    assert busy.reduce_s == 7 * calm.reduce_s == 21.0 and busy.import_s == 7 * calm.import_s
    assert busy.limit_s > 6 * calm.limit_s and load_factor(1.0) == 1.0


def test_a_version_that_rlrun_does_not_run_with_is_told() -> None:
    """As the installation of a client that needs an older NumPy leaves it."""
    (found,) = [
        one for one in cross_node_checks.versions(with_versions("peer", numpy="1.26.4")) if "needs" in one.cause
    ]
    assert (found.status, found.where) == (Status.warning, "peer")
    assert found.cause == "numpy is 1.26.4, and rlrun needs >=2" and "pip install 'numpy>=2'" in found.fix
