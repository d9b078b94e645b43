"""The doctor's all-reduces on every shipped placement: never two NCCL ranks on one accelerator."""

from __future__ import annotations

import dataclasses
import functools
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from rlrun.cluster import preflight
from rlrun.config.composition import SHIPPED
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.doctor.accelerator_checks import FAKE
from rlrun.doctor.check import ClusterState, Status
from rlrun.doctor.checks import run_checks
from rlrun.doctor.collective import NCCL_S, Job, all_reduce
from rlrun.doctor.cross_node_checks import outcomes
from rlrun.doctor.facts import ClusterFacts, PairFacts
from rlrun.doctor.node_request import node_requests
from rlrun.doctor.trials import BACKENDS, Member, groups, members, nodes_of, planned_pairs
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.plan import Plan
from rlrun.placement.planner import plan
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError
from tests.unit.doctor.healthy import node_facts

HERE = "127.0.0.1"
NODE = node_facts("train-0", "10.77.0.1", "enp3s0")
A100 = Accelerator("NVIDIA A100-SXM4-80GB", 80 * 10**9, has_rt_cores=False)
RTX = Accelerator("NVIDIA GeForce RTX 4090", 24 * 10**9, has_rt_cores=True)
PLACEMENTS = sorted(path.stem for path in (SHIPPED / "placement").glob("*.yaml"))
BY_RULE = None  # without a named placement
LAYOUTS = list(product((1, 2, 3), (1, 2, 8)))
# Combinations that the planner accepts; it refuses all others for lack of accelerators or nodes.
FIT = {
    "colocated": [(1, 8), (2, 8), (3, 8)],
    "disaggregated": [(1, 8), (2, 8), (3, 8)],
    "dual_node": [(2, 8), (3, 8)],
    "single_node": [layout for layout in LAYOUTS if layout != (1, 1)],
    "three_nodes": [(3, 8)],
    BY_RULE: [layout for layout in LAYOUTS if layout != (1, 1)],
}
# A refusal does not depend on how weights are sent.
CASES = [
    (placement, layout, transport)
    for placement, layout in product([BY_RULE, *PLACEMENTS], LAYOUTS)
    for transport in (("object_store", "collective") if layout in FIT[placement] else ("object_store",))
]


def inventory(num_nodes: int, num_gpus: int) -> Inventory:
    """Return an inventory of one node of A100s and further nodes of RTX 4090s."""
    names = ("train-0", "sim-0", "sim-1")[:num_nodes]
    return Inventory(
        tuple(
            NodeInfo(name, f"10.77.0.{i}", 64, 10**12, (A100 if i == 1 else RTX,) * num_gpus)
            for i, name in enumerate(names, start=1)
        )
    )


def test_interpreters_are_asked_for_by_the_key_of_their_node_group() -> None:
    groups = "{train: {names: train-0}, old: {names: sim-0, python: /opt/old}, new: {names: sim-1, python: /opt/new}}"
    on_train = "{on: train, accelerators: 0-1}"
    roles = f"{{actor: {on_train}, rollout: {on_train}, env: {{on: [old, new], accelerators: all}}}}"
    counts = ["actor.num_workers=2", "rollout.num_workers=2", "env.num_workers=4", "env.num_envs=16"]
    config = load(["run=turning_on_radio", *counts, f"placement.nodes={groups}", f"placement.roles={roles}"])
    machines = inventory(3, 2)
    requests = node_requests(config, machines, plan(Workload(config), machines), is_thorough=True)
    keys = {"/opt/old": "placement.nodes.old.python", "/opt/new": "placement.nodes.new.python"}
    packages = {one.python: one.key for request in requests for one in request.packages if one.package == "numpy"}
    assert packages == keys and not any(one.inputs for one in requests)


@functools.cache
def configured(placement: str | None, transport: str) -> RunConfig:
    chosen = [f"+placement={placement}", "rollout.num_workers=8", "env.num_workers=16"] if placement else []
    if placement in ("disaggregated", "three_nodes"):
        chosen[1] = "rollout.num_workers=2"
    if placement == "single_node":
        chosen[1:] = []
    return load([*chosen, f"weight_sync.transport={transport}"])


def pairs(config: RunConfig, planned: Plan, backend: str) -> list[tuple[Member, Member]]:
    """Return jobs as RayInspection makes them for members."""
    found = {member.name: member for member in members(config, planned, backend)}
    return [(found[a], found[b]) for a, b in planned_pairs(list(found))]


def job(member: Member, backend: str, every: list[tuple[str, str]], port: int, is_first: bool) -> Job:
    own = [pair for pair in every if member.name in pair]
    return Job(member.name, own, backend, "lo", HERE, port, is_first, 10.0, member.accelerator)


@pytest.mark.parametrize(("placement", "layout", "transport"), CASES)
def test_no_pair_names_an_accelerator_twice(placement, layout, transport) -> None:
    config = configured(placement, transport)
    if layout not in FIT[placement]:
        with pytest.raises(RunError) as refusal:
            plan(Workload(config), inventory(*layout))
        assert refusal.value.exit_status == ExitStatus.placement
        return
    planned = plan(Workload(config), inventory(*layout))
    actors = planned.of("actor")
    for a, b in pairs(config, planned, "nccl"):
        assert planned.training_backend.value == "nccl"
        assert a.name != b.name and (a.node, a.accelerator) != (b.node, b.accelerator)
        for member in (a, b):
            seen = job(member, "nccl", [(a.name, b.name)], 1, False).environment["CUDA_VISIBLE_DEVICES"]
            assert seen == str(member.accelerator) and seen.isdigit()
            assert any(
                slot.node == member.node and member.accelerator in slot.accelerators
                for slot in (*actors, *planned.of("rollout"))
            )
    for a, b in pairs(config, planned, "gloo"):
        assert a.name != b.name and a.accelerator is b.accelerator is None
        assert "CUDA_VISIBLE_DEVICES" not in job(a, "gloo", [], 1, False).environment
    for backend in BACKENDS:
        group = members(config, planned, backend)
        assert not group or group[0].node == actors[0].node  # the node of the store


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_single_training_node_tries_two_of_its_accelerators(placement) -> None:
    config = configured(placement, "object_store")
    planned = plan(Workload(config), inventory(*FIT[placement][0]))
    ((a, b),) = pairs(config, planned, "nccl")
    assert a.node == b.node == "train-0" and (a.accelerator, b.accelerator) == (0, 1)
    assert (a.name, b.name) == ("train-0 actor/0", "train-0 actor/1")


def test_several_training_nodes_give_one_accelerator_each() -> None:
    roles = "placement.roles={actor: 4-11, rollout: 0-3, env: 12-15}"
    config = load(
        ["actor.num_workers=8", "rollout.num_workers=4", "env.num_workers=4", "actor.micro_batch_size=2", roles]
    )
    ((a, b),) = pairs(config, plan(Workload(config), inventory(2, 8)), "nccl")
    assert (a, b) == (Member("train-0", "train-0", 4), Member("sim-0", "sim-0", 0))


def test_a_single_accelerator_is_reported_as_skipped() -> None:
    config = RunConfig()
    config.actor.num_workers = 1
    planned = plan(Workload(config), inventory(1, 1))
    assert planned.training_backend.value == "nccl" and pairs(config, planned, "nccl") == []
    (finding,) = [
        finding
        for finding in run_checks(ClusterState(config, (), ClusterFacts(()), planned, None), [])
        if finding.check == "nccl"
    ]
    assert (finding.status, finding.value) == (Status.ok, "skipped: one accelerator")


def test_nccl_has_time_to_open_devices() -> None:
    """Opening eight GPUs without persistence mode takes up to 15 s, the first communicator up to 4 s."""
    slow, fast = (
        dataclasses.replace(job(Member("a", "a", 0), b, [], 1, True), timeout_s=NCCL_S) for b in ("nccl", "gloo")
    )
    assert NCCL_S >= 30 and slow.limit_s == fast.limit_s + NCCL_S


@pytest.mark.skipif(sys.platform != "linux", reason="loopback is called lo")
def test_two_members_of_one_node_are_two_processes() -> None:
    """Use Gloo as NCCL is used on a training node: one inspector, two processes, one all-reduce."""
    config = configured("dual_node", "object_store")
    group = members(config, plan(Workload(config), inventory(2, 8)), "gloo")
    assert nodes_of(group) == ["train-0"] and len(group) == 2
    with socket.create_server((HERE, 0)) as probe:
        port = probe.getsockname()[1]
    every = planned_pairs([member.name for member in group])
    told = all_reduce([job(member, "gloo", every, port, member is group[0]) for member in group])
    assert {(facts.source, facts.target, facts.error) for facts in told} == {(*every[0], None)}


def test_two_members_of_a_single_node_are_tried_under_nccl_only(monkeypatch) -> None:
    """The machine of a run without a cluster: two jobs, each of which sees an accelerator of its own."""
    config = configured(BY_RULE, "object_store")
    config = dataclasses.replace(config, actor=dataclasses.replace(config.actor, num_workers=2))
    machines = inventory(1, 8)
    planned = plan(Workload(config), machines)
    tried: list[Job] = []

    def all_reduce(given: list[Job]) -> tuple[PairFacts, ...]:
        tried.extend(given)
        return tuple(PairFacts(*job.pairs[0], job.backend, None, 1.0) for job in given)

    monkeypatch.setattr(preflight.Inspector, "measure", lambda self: NODE)
    monkeypatch.setattr(preflight.Inspector, "all_reduce", lambda self, given: all_reduce(given))
    facts = preflight._measure(config, node_requests(config, machines, planned, False), planned, [], False)
    assert [(job.backend, job.environment["CUDA_VISIBLE_DEVICES"]) for job in tried] == [("nccl", "0"), ("nccl", "1")]
    assert [job.is_store_here for job in tried] == [True, False]
    assert outcomes(facts.pairs, "nccl") == {("train-0 actor/0", "train-0 actor/1"): None}


def test_which_backends_are_tried() -> None:
    one = {"train-0": NODE}
    two = one | {"sim-0": dataclasses.replace(NODE, node="sim-0")}
    config = configured("dual_node", "collective")
    planned = plan(Workload(config), inventory(2, 8))
    assert {backend: len(group) for backend, group in groups(config, planned, two).items()} == {"gloo": 2, "nccl": 2}
    declared = {name: dataclasses.replace(node, environment={FAKE: "A100:8:80"}) for name, node in two.items()}
    assert list(groups(config, planned, declared)) == ["gloo"]
    assert list(groups(config, planned, one)) == ["nccl"] and groups(config, None, two) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="loopback is called lo")
def test_a_device_that_cannot_be_opened_is_reported_instead_of_the_link() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has an accelerator")
    with socket.create_server((HERE, 0)) as probe:
        port = probe.getsockname()[1]
    group = [Member("a", "a actor/0", 0), Member("a", "a actor/1", 1)]
    every = planned_pairs([member.name for member in group])
    with ThreadPoolExecutor() as pool:
        jobs = [job(member, "nccl", every, port, member is group[0]) for member in group]
        told = [facts for found in pool.map(lambda one: all_reduce([one]), jobs) for facts in found]
    assert [facts.error.partition(":")[0] for facts in told] == ["accelerator 0", "accelerator 1"]
