"""Two healthy nodes, and functions that give them a fault, for the tests of checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

from rlrun.config.schema import OptimizerKind, Precision, RunConfig, WeightTransport
from rlrun.doctor.check import ClusterState
from rlrun.doctor.facts import (
    ClusterFacts,
    FolderFacts,
    GpuFacts,
    InputFacts,
    InterfaceFacts,
    LinkFacts,
    NodeFacts,
    PairFacts,
    PathFacts,
)
from rlrun.doctor.node_request import node_requests
from rlrun.doctor.omnigibson_checks import SimulatorFacts
from rlrun.doctor.optional_packages import PackageFacts, needed_packages
from rlrun.doctor.simulator_checks import RendererFacts, SpacesFacts
from rlrun.placement.budget import Budget, budget
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.network import PathMtu
from rlrun.placement.plan import Plan
from rlrun.placement.planner import plan
from rlrun.placement.workload import Workload

GB = 10**9
A100 = Accelerator("NVIDIA A100-SXM4-80GB", 80 * GB, has_rt_cores=False)
NODES = (
    NodeInfo("train", "10.77.0.1", 64, 500 * GB, (A100, A100)),
    NodeInfo("peer", "10.77.0.2", 64, 500 * GB, (A100, A100)),
)
VERSIONS = {
    "python": "3.11.7",
    "rlrun": "0.4.0",
    "rlrun sources": "abc",
    "torch": "2.13.0+cu128",
    "torch CUDA": "12.8",
    "ray": "2.60.0",
    "transformers": "5.23.0",
    "numpy": "2.4.6",
}


def config() -> RunConfig:
    """Return a configuration with four actor ranks over both nodes and a given policy."""
    made = RunConfig()
    made.actor.num_workers, made.rollout.num_workers, made.env.num_workers = 4, 2, 2
    made.weight_sync.transport = WeightTransport.collective
    made.placement.roles = {"actor": "0-3", "rollout": [0, 2], "env": [0, 2]}
    made.policy.path, made.output_dir = "/models/oft", "/data/run"  # of 7 B parameters
    made.actor.param_precision = made.actor.reduce_precision = made.rollout.precision = Precision.bf16
    made.actor.micro_batch_size, made.actor.activation_checkpointing = 1, True
    return made


def node_facts(name: str, address: str, interface: str) -> NodeFacts:
    """Return the facts of a healthy node."""
    both = ("peer", "train")
    return NodeFacts(
        node=name,
        address=address,
        host_name=name,
        host_addresses=(address,),
        interfaces=(
            InterfaceFacts("lo", ("127.0.0.1",), True),
            InterfaceFacts(interface, (address,), True),
            InterfaceFacts("docker0", ("172.17.0.1",), True),
        ),
        folders=(
            FolderFacts("temp", "/tmp", 100 * GB, 50 * GB, None, 500e6),
            FolderFacts("spill", "/spill", 100 * GB, 50 * GB, None, 500e6),
            FolderFacts("shared memory", "/dev/shm", 200 * GB, 200 * GB, None),
            FolderFacts("cache", "/data/cache", 100 * GB, 50 * GB, None, 500e6, both),
            FolderFacts("run", "/data/run", 100 * GB, 50 * GB, None, 500e6, both),
        ),
        inputs=(InputFacts("policy.path", "/models/oft", 12, 15 * GB, "9f0"),),
        memory_bytes=500 * GB,
        free_memory_bytes=450 * GB,
        gpus=tuple(GpuFacts(i, A100.model, "550.54.15", 80 * GB, 79 * GB) for i in range(2)),
        versions=VERSIONS,
        environment={"RAY_AUTH_MODE": "token"},
        object_store_bytes=GB,
    )


def link(source: NodeFacts, target: NodeFacts) -> LinkFacts:
    """Return the facts of a healthy link."""
    return LinkFacts(source.node, target.node, "any port", target.address, 40000, None, 0.4, source.address, 0.001)


def healthy() -> ClusterState:
    """Return a cluster without faults."""
    train, peer = node_facts("train", "10.77.0.1", "enp3s0"), node_facts("peer", "10.77.0.2", "ens7f1")
    made, (planned, estimate) = config(), planned_once()
    facts = ClusterFacts(
        (train, peer),
        (link(train, peer), link(peer, train)),
        tuple(PairFacts("train", "peer", backend, None, 2.0) for backend in ("gloo", "gloo", "nccl", "nccl")),
    )
    jobs = node_requests(made, Inventory(NODES), planned, is_thorough=True)
    return ClusterState(made, tuple(jobs), facts, planned, estimate)


@cache
def planned_once() -> tuple[Plan, Budget]:
    """Plan the healthy cluster, which nothing changes."""
    made, inventory = config(), Inventory(NODES)
    planned = plan(Workload(made), inventory)
    return planned, budget(Workload(made), planned, inventory)


def with_node(name: str, change: Callable[[NodeFacts], dict[str, Any]]) -> ClusterState:
    """The healthy cluster with other facts of one node."""
    cluster = healthy()
    nodes = tuple(
        dataclasses.replace(node, **change(node)) if node.node == name else node for node in cluster.facts.nodes
    )
    return dataclasses.replace(cluster, facts=dataclasses.replace(cluster.facts, nodes=nodes))


def with_folder(name: str, purpose: str, **changes: Any) -> ClusterState:
    """The healthy cluster with another folder on one node."""
    return with_node(
        name,
        lambda node: {
            "folders": tuple(
                dataclasses.replace(folder, **changes) if folder.purpose == purpose else folder
                for folder in node.folders
            )
        },
    )


def with_gpu(name: str, index: int, **changes: Any) -> ClusterState:
    """The healthy cluster with another GPU on one node."""
    return with_node(
        name,
        lambda node: {
            "gpus": tuple(dataclasses.replace(gpu, **changes) if gpu.index == index else gpu for gpu in node.gpus)
        },
    )


def with_renderer(simulator: str = "embedded", **changes: Any) -> ClusterState:
    """The healthy cluster with other renderer facts on the second node."""
    facts = RendererFacts("egl", "NVIDIA A100-SXM4-80GB/PCIe/SSE2", 1.2, "", "", "env.renderer=raycast needs none")
    cluster = with_node("peer", lambda node: {"simulator": dataclasses.replace(facts, **changes)})
    made = config()
    made.env.simulator = simulator
    return dataclasses.replace(cluster, config=made)


def with_package(error: str, is_late: bool = False, is_started: bool = True) -> ClusterState:
    """The healthy cluster with bitsandbytes on the second node."""
    made = config()
    made.actor.optimizer = OptimizerKind.adamw_8bit
    (request,) = needed_packages(made, {"actor": 1}, {})
    cluster = with_node("peer", lambda node: {"packages": (PackageFacts(request, error, is_late, is_started),)})
    return dataclasses.replace(cluster, config=made)


def with_spaces(**changes: Any) -> ClusterState:
    """The healthy cluster with a Gymnasium environment on the second node, and a policy that needs images."""
    facts = SpacesFacts(1, 8, "image -> camera, state -> proprioception", "")
    cluster = with_node("peer", lambda node: {"simulator": dataclasses.replace(facts, **changes)})
    made = config()
    made.env.simulator, made.policy.kind = "gymnasium", "cnn"
    return dataclasses.replace(cluster, config=made)


def with_environment(name: str, **variables: str) -> ClusterState:
    """The healthy cluster with further variables in the shell of one node."""
    return with_node(name, lambda node: {"environment": {**node.environment, **variables}})


def with_versions(name: str, **versions: str) -> ClusterState:
    """The healthy cluster with other versions on one node; "_" in a name stands for a space."""
    new = {package.replace("_", " "): version for package, version in versions.items()}
    return with_node(name, lambda node: {"versions": {**node.versions, **new}})


def without_version(name: str, package: str) -> ClusterState:
    """The healthy cluster without a package on one node."""
    return with_node(name, lambda node: {"versions": {k: v for k, v in node.versions.items() if k != package}})


def with_links(change: Callable[[LinkFacts], dict[str, Any]]) -> ClusterState:
    """The healthy cluster with other facts of its links."""
    cluster = healthy()
    links = tuple(dataclasses.replace(link, **change(link)) for link in cluster.facts.links)
    return dataclasses.replace(cluster, facts=dataclasses.replace(cluster.facts, links=links))


def with_pairs(backend: str, *errors: str | None) -> ClusterState:
    """The healthy cluster with these results of the two sides of its all-reduce."""
    cluster = healthy()
    pairs = tuple(PairFacts("train", "peer", backend, error, 2.0) for error in errors)
    return dataclasses.replace(cluster, facts=dataclasses.replace(cluster.facts, pairs=pairs))


def with_paths(mtu: int, passes: int) -> ClusterState:
    """The healthy cluster with this path from the second node to the first."""
    cluster = healthy()
    paths = (PathFacts("peer", "train", PathMtu("ens7f1", mtu, passes)),)
    return dataclasses.replace(cluster, facts=dataclasses.replace(cluster.facts, paths=paths))


def with_interface(name: str, wanted: str) -> ClusterState:
    """The healthy cluster with an interface that the placement names for one node."""
    cluster = healthy()
    jobs = tuple(dataclasses.replace(job, interface=wanted) if job.node == name else job for job in cluster.requests)
    return dataclasses.replace(cluster, requests=jobs)


SIMULATOR = SimulatorFacts(
    python="/opt/omnigibson/bin/python",
    error=None,
    python_version="3.10.14",
    packages={"omnigibson": "3.7.2", "isaacsim": "4.5.0.0", "bddl": "3.7.0", "numpy": "1.26.4", "msgpack": "1.1.0"},
    isaac_path="",
    vulkan_icds=("/usr/share/vulkan/icd.d/nvidia_icd.json",),
    missing_libraries=(),
    data_path="/data/behavior",
    has_scene=True,
    has_key=True,
    eula="YES",
)


def with_simulator(gpu: str = "NVIDIA GeForce RTX 4090", driver: str = "550.54.15", **changes: Any) -> ClusterState:
    """The healthy cluster whose second node runs OmniGibson, with other facts about the installation."""
    gpus = tuple(GpuFacts(i, gpu, driver, 80 * GB, 79 * GB) for i in range(2))
    facts = dataclasses.replace(SIMULATOR, **changes)
    cluster = with_node("peer", lambda node: {"simulator": facts, "gpus": gpus})
    env = dataclasses.replace(cluster.config.env, simulator="omnigibson")
    return dataclasses.replace(cluster, config=dataclasses.replace(cluster.config, env=env))
