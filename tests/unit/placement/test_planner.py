"""The planner: both spellings, ratios, hardware rules, and every refusal with its exact shortfall."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from rlrun.config.schema import ClusterKind, CompileBackend, RolloutBackendKind, RunConfig
from rlrun.placement.inventory import Accelerator, Interface, Inventory, NodeInfo
from rlrun.placement.node_environment import PINNING
from rlrun.placement.plan import Plan
from rlrun.placement.planner import plan
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError

A100 = Accelerator("NVIDIA A100-SXM4-80GB", 80 * 10**9, has_rt_cores=False)
RTX = Accelerator("NVIDIA GeForce RTX 4090", 24 * 10**9, has_rt_cores=True)
TRAIN = NodeInfo("train-0", "10.77.0.1", 96, 10**12, (A100,) * 8)
SIM = NodeInfo("sim-0", "10.77.0.2", 64, 256 * 10**9, (RTX,) * 8)
DUAL = Inventory((TRAIN, SIM))
CPU = Inventory((NodeInfo("a", "", 2, 10**9, ()), NodeInfo("b", "", 2, 10**9, ())))


def configured(
    actor: int, rollout: int, env: int, roles: dict[str, Any], nodes: dict[str, Any] | None = None
) -> RunConfig:
    config = RunConfig()
    config.actor.num_workers, config.rollout.num_workers, config.env.num_workers = actor, rollout, env
    config.placement.roles, config.placement.nodes = roles, nodes or {}
    return config


def seats(planned: Plan, role: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(slot.node, slot.accelerators) for slot in planned.of(role)]


SHORT = {"actor": "0-7", "rollout": "0-3", "env": "8-11"}
NODES = {"train": {"count": 1, "accelerator": "A100"}, "sim": {"count": 1, "accelerator": "rtx 4090"}}
FULL = {
    "actor": {"on": "train", "accelerators": "0-7"},
    "rollout": {"on": "train", "accelerators": "0-3"},
    "env": {"on": "sim", "accelerators": "0-3", "workers_per_accelerator": 1},
}


@pytest.mark.parametrize(("roles", "nodes"), [(SHORT, None), (FULL, NODES)])
def test_both_spellings_of_the_seed(roles: dict[str, Any], nodes: dict[str, Any] | None) -> None:
    planned = plan(Workload(configured(8, 4, 4, roles, nodes)), DUAL)
    assert seats(planned, "actor") == [("train-0", (i,)) for i in range(8)]
    assert seats(planned, "rollout") == [("train-0", (i,)) for i in range(4)]
    assert seats(planned, "env") == [("sim-0", (i,)) for i in range(4)]
    assert [node.ranks for node in planned.nodes] == ["0-7", "8-15"]
    assert planned.environment("env", 3)["CUDA_VISIBLE_DEVICES"] == "3"
    assert planned.slot("env", 0).address == "10.77.0.2"
    assert planned.training_backend.value == "nccl" and planned.sync_backend.value == "gloo"


def test_hidden_accelerators_keep_their_index_and_get_no_worker() -> None:
    train = DUAL.nodes[0]
    hidden = (replace(train.accelerators[0], is_hidden=True),) * 2
    shared = Inventory((replace(train, accelerators=(*hidden, *train.accelerators[2:4])),))
    everywhere = {"actor": "0-1", "rollout": "0-1", "env": "0-1"}
    planned = plan(Workload(configured(2, 2, 2, everywhere)), shared)
    assert seats(planned, "actor") == [("train-0", (2,)), ("train-0", (3,))]
    assert planned.environment("actor", 0)["CUDA_VISIBLE_DEVICES"] == "2"
    assert planned.nodes[0].ranks == "0-1"
    with pytest.raises(RunError, match="has 2"):
        plan(Workload(configured(1, 2, 2, everywhere | {"actor": "2"})), shared)


def test_one_process_computes_on_one_accelerator() -> None:
    local = configured(1, 1, 1, {})
    local.cluster.kind = ClusterKind.local
    planned = plan(Workload(local), DUAL)
    assert {slot.accelerators for slot in planned.slots} == {(0,)}


def test_accelerators_are_numbered_as_nvidia_smi_does_and_actors_can_grow_their_memory() -> None:
    planned = plan(Workload(configured(8, 4, 4, SHORT)), DUAL)
    assert {planned.environment(role, 0)["CUDA_DEVICE_ORDER"] for role in ("actor", "rollout", "env")} == {"PCI_BUS_ID"}
    assert planned.environment("actor", 0)["PYTORCH_ALLOC_CONF"].startswith("expandable_segments:True,")
    assert planned.environment("rollout", 0)["PYTORCH_ALLOC_CONF"] == PINNING


def test_workers_that_compile_share_the_cores_of_their_node() -> None:
    """Inductor else starts a process a core, up to 32, for each of them."""
    config = configured(8, 4, 4, SHORT)
    cores = TRAIN.num_cpus

    def planned_threads(role: str) -> str | None:
        return plan(Workload(config), DUAL).environment(role, 0).get("TORCHINDUCTOR_COMPILE_THREADS")

    assert planned_threads("actor") == str(min(32, cores // 8))
    assert planned_threads("rollout") is None and planned_threads("env") is None
    config.policy.compile_backend = CompileBackend.inductor
    assert planned_threads("rollout") == str(min(32, cores // 4))
    config.policy.compile_backend = CompileBackend.none
    assert planned_threads("actor") is None
    config.policy.compile_backend = None
    crowded = Inventory((replace(TRAIN, num_cpus=2), SIM))
    assert plan(Workload(config), crowded).environment("actor", 0)["TORCHINDUCTOR_COMPILE_THREADS"] == "1"


def exclusive(limit: int) -> Inventory:
    return Inventory((replace(TRAIN, accelerators=(replace(A100, max_processes=limit),) * 8), SIM))


def test_workers_that_share_an_accelerator_of_one_process_are_refused_by_name() -> None:
    config = configured(8, 4, 4, SHORT)
    with pytest.raises(RunError, match="actor/0 and rollout/0 would compute on accelerator 0 of node train-0") as one:
        plan(Workload(config), exclusive(1))
    assert "EXCLUSIVE_PROCESS" in one.value.cause and "nvidia-smi -i 0 -c DEFAULT" in one.value.remedy
    assert one.value.exit_status is ExitStatus.placement
    with pytest.raises(RunError, match="lets no process compute"):
        plan(Workload(config), exclusive(0))
    apart = configured(4, 4, 4, {"actor": "0-3", "rollout": "4-7", "env": "4-7"})  # which only draws there
    assert len(plan(Workload(apart), exclusive(1)).slots) == 12


def test_one_process_may_have_all_roles_on_an_accelerator_of_one_process() -> None:
    local = configured(1, 1, 1, {})
    local.cluster.kind = ClusterKind.local
    assert {slot.accelerators for slot in plan(Workload(local), exclusive(1)).slots} == {(0,)}


def test_groups_keep_their_order_and_settings() -> None:
    """Ranks count in the order of the groups, not of the inventory."""
    nodes = {
        "train": NODES["train"],
        "sim": NODES["sim"] | {"python": "/opt/og/bin/python", "interface": "ens5", "environment": {"A": 1}},
    }
    planned = plan(
        Workload(configured(8, 8, 8, {"actor": "0-7", "rollout": "0-7", "env": "8-15"}, nodes)), Inventory((SIM, TRAIN))
    )
    assert [node.node.name for node in planned.nodes] == ["train-0", "sim-0"]
    env = planned.slot("env", 0)
    assert (env.node, env.interpreter, env.interface) == ("sim-0", "/opt/og/bin/python", "ens5")
    assert planned.environment("env", 0)["A"] == "1" and "A" not in planned.environment("actor", 0)


@pytest.mark.parametrize("spelling", ["0-3", [0, 1, 2, 3], "0,1,2-3", ["0-1", "2-3"]])
def test_rank_spellings(spelling: Any) -> None:
    inventory = Inventory((NodeInfo("n", "", 8, 10**9, (RTX,) * 4),))
    planned = plan(Workload(configured(4, 4, 4, {"actor": spelling, "rollout": spelling, "env": "all"})), inventory)
    assert seats(planned, "actor") == seats(planned, "env") == [("n", (i,)) for i in range(4)]


def test_several_workers_on_an_accelerator() -> None:
    roles = SHORT | {"env": {"accelerators": "8-11", "workers_per_accelerator": 2}}
    planned = plan(Workload(configured(8, 4, 8, roles)), DUAL)
    assert seats(planned, "env") == [("sim-0", (i // 2,)) for i in range(8)]


def test_several_accelerators_for_a_worker() -> None:
    config = configured(8, 2, 4, SHORT)
    config.rollout.backend = RolloutBackendKind.sglang
    planned = plan(Workload(config), DUAL)
    assert seats(planned, "rollout") == [("train-0", (0, 1)), ("train-0", (2, 3))]
    assert planned.environment("rollout", 1)["CUDA_VISIBLE_DEVICES"] == "2,3"


@pytest.mark.parametrize(
    ("actor", "env", "state"),
    [("0-3", "8-11", "on"), ("4-7", "8-11", "on"), ("0,2,4,6", "8-11", "off"), ("4-7", "1,3,8-9", "off")],
)
def test_memory_check_is_off_only_where_the_plan_makes_memory_unequal(actor: str, env: str, state: str) -> None:
    """Two groups of two equal GPUs; the other workers on them decide."""
    config = configured(4, 2, 4, {"actor": actor, "rollout": "0-3", "env": env})
    config.rollout.backend = RolloutBackendKind.sglang
    planned = plan(Workload(config), DUAL)
    assert [slot.memory_check.value for slot in planned.of("rollout")] == [state] * 2
    assert planned.slot("actor", 0).memory_check.value == "on"


def test_declared_accelerators_take_gloo() -> None:
    fake = Accelerator("A100", 80 * 10**9, False, is_fake=True)
    planned = plan(Workload(configured(2, 2, 2, {})), Inventory((NodeInfo("n", "", 8, 10**9, (fake,) * 8),)))
    assert planned.training_backend.value == planned.sync_backend.value == "gloo"


def test_an_interface_must_exist_on_every_node_of_its_group() -> None:
    has = (Interface("ens5", ("10.77.0.2",)), Interface("lo", ("127.0.0.1",)))
    machines = Inventory((TRAIN, replace(SIM, interfaces=has)))
    nodes = NODES | {"sim": NODES["sim"] | {"interface": "enp3s0"}}
    with pytest.raises(RunError) as refused:
        plan(Workload(configured(8, 4, 4, FULL, nodes)), machines)
    text = str(refused.value)
    assert "Node sim-0 has no interface 'enp3s0'" in text and "ens5 (10.77.0.2)" in text
    assert refused.value.key == "placement.nodes.sim.interface"
    nodes["sim"] = NODES["sim"] | {"interface": "ens5"}
    assert plan(Workload(configured(8, 4, 4, FULL, nodes)), machines).slot("env", 0).interface == "ens5"


def test_no_accelerators_no_request() -> None:
    planned = plan(Workload(configured(2, 2, 4, {})), CPU)
    assert [slot.node for slot in planned.of("env")] == ["a", "a", "b", "b"]
    assert all(not slot.accelerators for slot in planned.slots)
    assert planned.environment("env", 0) == {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
    assert planned.training_backend.value == planned.sync_backend.value == "gloo"


def test_roles_by_node_group_without_accelerators() -> None:
    nodes = {"learn": {"names": ["b"]}, "simulate": {"names": ["a"]}}
    roles = {"actor": {"on": "learn"}, "rollout": {"on": "learn"}, "env": {"on": "simulate"}}
    planned = plan(Workload(configured(2, 1, 2, roles, nodes)), CPU)
    assert {slot.node for slot in planned.of("actor")} == {"b"} and {slot.node for slot in planned.of("env")} == {"a"}


def test_rule_takes_free_accelerators_first() -> None:
    planned = plan(Workload(configured(2, 2, 2, {})), Inventory((NodeInfo("n", "", 8, 10**9, (RTX,) * 5),)))
    assert [slot.accelerators for slot in planned.slots] == [(0,), (1,), (2,), (3,), (4,), (0,)]
    assert planned.sync_backend.value == "nccl"


def test_rule_with_one_accelerator() -> None:
    """Two FSDP ranks cannot share the accelerator of a laptop, and none of them computes on its cores."""
    laptop = Inventory((NodeInfo("laptop", "", 8, 10**9, (RTX,)),))
    with pytest.raises(RunError, match="2 actor ranks do not fit on 1 accelerator") as refused:
        plan(Workload(configured(2, 2, 2, {})), laptop)
    assert refused.value.key == "actor.num_workers"
    planned = plan(Workload(configured(1, 2, 2, {})), laptop)
    assert [slot.accelerators for slot in planned.of("actor")] == [(0,)]
    assert [slot.accelerators for slot in planned.of("rollout")] == [(0,), (0,)]


def test_a_thousand_nodes_in_seconds() -> None:
    trainers = tuple(NodeInfo(f"train-{i}", "", 96, 10**12, (A100,) * 8) for i in range(512))
    simulators = tuple(NodeInfo(f"sim-{i}", "", 64, 10**11, (RTX,) * 8) for i in range(512))
    roles = {"actor": {"on": "t"}, "rollout": {"on": "t"}, "env": {"on": "s", "workers_per_accelerator": 2}}
    nodes = {"t": {"accelerator": "A100"}, "s": {"accelerator": "4090"}}
    started = time.process_time()
    planned = plan(Workload(configured(4096, 4096, 8192, roles, nodes)), Inventory(simulators + trainers))
    assert time.process_time() - started < 20  # 2 or 3 s on an idle machine; must not grow quadratically
    assert len(planned.slots) == 16384 and planned.slot("env", 8191).node == "sim-511"


@pytest.mark.parametrize(
    ("sizes", "roles", "nodes", "told"),
    [
        ((8, 4, 4), SHORT | {"env": "16-19"}, None, ["Accelerator 16-19", "has 16", "4 more are needed"]),
        ((8, 4, 4), SHORT | {"actor": "7-0"}, None, ["'7-0' names no accelerator ranks"]),
        ((8, 4, 4), SHORT | {"actor": "0-3,3-7"}, None, ["A rank is named twice"]),
        ((8, 4, 4), SHORT | {"actr": "0"}, None, ["no role 'actr'", "Did you mean 'actor'?"]),
        ((8, 4, 4), {"actor": "0-7"}, None, ["rollout, env has no place"]),
        (
            (8, 4, 4),
            FULL | {"env": {"onn": "sim"}},
            NODES,
            ["Unknown key 'placement.roles.env.onn'", "Did you mean 'on'?"],
        ),
        ((8, 4, 4), FULL | {"env": {"on": "simm"}}, NODES, ["no node group 'simm'", "Did you mean 'sim'?"]),
        ((8, 4, 4), FULL, NODES | {"sim": {"acelerator": "x"}}, ["Unknown key 'placement.nodes.sim.acelerator'"]),
        ((8, 4, 4), FULL, NODES | {"sim": {"count": 0}}, ["0 is not a positive whole number"]),
        (
            (8, 4, 4),
            FULL,
            NODES | {"sim": {"count": 3, "accelerator": "4090"}},
            ["needs 3 nodes with", "1 free", "2 short"],
        ),
        ((8, 4, 4), FULL, NODES | {"sim": {"names": ["x", "y"]}}, ["needs 2 nodes named x, y, 0 free: 2 short"]),
        ((8, 4, 4), FULL | {"env": {"on": "sim", "accelerators": "0-8"}}, NODES, ["Accelerator 8", "sim has 8"]),
        ((8, 3, 4), SHORT, None, ["3 rollout workers do not fit evenly on 4 accelerators", "rollout.num_workers=4"]),
        (
            (8, 4, 4),
            SHORT | {"env": {"accelerators": "8-11", "workers_per_accelerator": 2}},
            None,
            ["4 env workers do not fit evenly", "env.num_workers=8"],
        ),
        ((4, 4, 4), SHORT, None, ["8 accelerators for 4 actor workers: each would get 2 and use one"]),
        ((16, 4, 4), SHORT, None, ["2 actor ranks share accelerator 0 of node train-0", "actor.num_workers=8"]),
    ],
)
def test_refusals(sizes: tuple[int, int, int], roles: dict[str, Any], nodes: Any, told: list[str]) -> None:
    with pytest.raises(RunError) as refused:
        plan(Workload(configured(*sizes, roles, nodes)), DUAL)
    assert refused.value.exit_status is ExitStatus.placement and refused.value.remedy
    for text in told:
        assert text in str(refused.value)


def test_worker_never_spans_nodes_or_unlike_accelerators() -> None:
    config = configured(8, 1, 4, SHORT | {"rollout": "7-8"})
    config.rollout.backend = RolloutBackendKind.sglang
    with pytest.raises(RunError, match="rollout/0 would span the nodes sim-0, train-0"):
        plan(Workload(config), DUAL)
    mixed = Inventory((NodeInfo("mixed", "", 8, 10**9, (A100, RTX)),))
    config = configured(1, 1, 1, {"actor": 0, "rollout": "0-1", "env": 1})
    config.rollout.backend = RolloutBackendKind.sglang
    with pytest.raises(RunError, match="rollout/0 would span unlike accelerators: NVIDIA A100"):
        plan(Workload(config), mixed)


def test_omnigibson_needs_rt_cores() -> None:
    config = configured(8, 4, 4, SHORT | {"env": "0-3"})
    config.env.simulator = "omnigibson"
    with pytest.raises(RunError, match="env/0 would simulate on node train-0 with NVIDIA A100.* no RT cores"):
        plan(Workload(config), DUAL)
    config.placement.roles = SHORT
    assert plan(Workload(config), DUAL).environment("env", 1)["OMNIGIBSON_GPU_ID"] == "1"
    config = configured(1, 1, 2, {})
    config.env.simulator = "omnigibson"
    with pytest.raises(RunError, match="with no accelerator, which has no RT cores"):
        plan(Workload(config), CPU)
