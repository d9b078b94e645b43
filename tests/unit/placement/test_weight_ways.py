"""The way of weights to each rollout worker, by the inventory: whose accelerator it shares, and who stays there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlrun.config.schema import ClusterKind, RolloutBackendKind, RunConfig, WeightTransport
from rlrun.placement.budget import budget
from rlrun.placement.choices import choose
from rlrun.placement.fitting import Fitting
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.memory import weight_buffers
from rlrun.placement.plan_tables import PlanPage
from rlrun.placement.planner import plan
from rlrun.placement.step_time import way_seconds
from rlrun.placement.weight_ways import Way, weight_ways
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError

A100 = Accelerator("NVIDIA A100-SXM4-80GB", 80 * 10**9, has_rt_cores=False)
NODES = tuple(NodeInfo(f"train-{i}", "", 96, 10**12, (A100,) * 2) for i in range(2))
ONE, TWO, CPU = Inventory(NODES[:1]), Inventory(NODES), Inventory((NodeInfo("n", "", 8, 10**11, ()),))
DEVICE, STORE, COLLECTIVE = WeightTransport.device, WeightTransport.object_store, WeightTransport.collective
TOGETHER = {"actor": "0-1", "rollout": "0-1", "env": "0-1"}


def configured(actor: int = 2, rollout: int = 2, roles: dict[str, Any] | None = None) -> RunConfig:
    config = RunConfig()
    config.actor.num_workers, config.rollout.num_workers, config.env.num_workers = actor, rollout, rollout
    config.placement.roles = TOGETHER if roles is None else roles
    return config


def found(config: RunConfig, machines: Inventory) -> list[tuple[WeightTransport, int, bool]]:
    ways = weight_ways(config, plan(Workload(config), machines))
    assert [way.rollout for way in ways] == list(range(config.rollout.num_workers))
    return [(way.transport, way.sender, way.is_shared) for way in ways]


def test_the_rank_on_the_same_accelerator_sends_where_both_stay() -> None:
    assert found(configured(), ONE) == [(DEVICE, 0, False), (DEVICE, 1, False)]
    several = configured(roles={"actor": "0-1", "rollout": "0-1", "env": "0-1"}, rollout=4)
    assert found(several, ONE) == [(DEVICE, sender, False) for sender in (0, 0, 1, 1)]
    nodes = configured(actor=4, rollout=4, roles={"actor": "0-3", "rollout": "0-3", "env": "0-3"})
    assert found(nodes, TWO) == [(DEVICE, sender, False) for sender in range(4)]


def test_workers_on_other_accelerators_take_from_the_host() -> None:
    apart = configured(1, 1, {"actor": "0", "rollout": "1", "env": "1"})
    assert found(apart, ONE) == [(STORE, 0, True)]
    some = configured(1, 2, {"actor": "1", "rollout": "0-1", "env": "0-1"})
    assert found(some, ONE) == [(STORE, 0, True), (DEVICE, 0, False)]
    elsewhere = configured(2, 4, {"actor": "0-1", "rollout": "0-3", "env": "0-3"})
    assert found(elsewhere, TWO) == [(DEVICE, 0, False), (DEVICE, 1, False), (STORE, 0, False), (STORE, 0, False)]
    assert found(configured(roles={}), CPU) == [(STORE, 0, True)] * 2


def in_turns(config: RunConfig) -> None:
    config.placement.offload = True


def by_an_engine(config: RunConfig) -> None:
    config.rollout.backend = RolloutBackendKind.sglang


def in_one_process(config: RunConfig) -> None:
    config.cluster.kind, config.placement.roles = ClusterKind.local, {}
    config.actor.num_workers = config.rollout.num_workers = config.env.num_workers = 1


def in_segments(config: RunConfig) -> None:
    chosen = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    config.placement.nodes = {"train": {"count": 1, "environment": chosen}}


OBSTACLES: dict[str, Callable[[RunConfig], None]] = {
    "placement.offload=true": in_turns,
    "rollout.backend=sglang takes weights from host memory": by_an_engine,
    "one process": in_one_process,
    "placement.nodes.train.environment gives its allocator expandable segments": in_segments,
}


@pytest.mark.parametrize("cause", OBSTACLES)
def test_what_keeps_a_rank_from_writing_there(cause: str) -> None:
    """By default the weights go as they did; asked for, the transport is refused with its cause."""
    config = configured()
    OBSTACLES[cause](config)
    is_shared = config.cluster.kind is ClusterKind.ray
    assert found(config, ONE) == [(STORE, 0, is_shared)] * config.rollout.num_workers
    config.weight_sync.transport = DEVICE
    with pytest.raises(RunError) as refused:
        plan(Workload(config), ONE)
    assert refused.value.key == "weight_sync.transport" and refused.value.value == "device"
    assert cause in (refused.value.cause or "").replace("Placement", "placement").replace("Rollout", "rollout")
    assert refused.value.remedy and refused.value.exit_status is ExitStatus.placement


@pytest.mark.parametrize(
    ("roles", "machines", "cause"),
    [
        ({"actor": "0", "rollout": "1", "env": "1"}, ONE, "No actor rank is on its accelerator"),
        ({}, CPU, "It runs without an accelerator"),
        (
            {"actor": "0", "rollout": "0", "env": "0"},
            Inventory((replace(NODES[0], accelerators=(replace(A100, is_fake=True),)),)),
            "Its accelerator is declared for a test",
        ),
    ],
)
def test_a_transport_that_is_asked_for_is_refused_early(roles: dict[str, Any], machines: Inventory, cause: str) -> None:
    config = configured(1, 1, roles)
    config.weight_sync.transport = DEVICE
    with pytest.raises(RunError, match=cause):
        plan(Workload(config), machines)
    config.weight_sync.transport = None
    assert found(config, machines) == [(STORE, 0, True)]


def test_an_override_is_for_all_workers() -> None:
    config = configured()
    for transport, is_shared in ((STORE, True), (COLLECTIVE, False)):
        config.weight_sync.transport = transport
        assert found(config, ONE) == [(transport, 0, is_shared)] * 2
    config.weight_sync.transport = DEVICE
    assert found(config, ONE) == [(DEVICE, 0, False), (DEVICE, 1, False)]
    assert weight_ways(config, plan(Workload(config), ONE, ("rollout", "env"))) == ()  # an evaluation sends no weights


def test_the_budget_has_the_two_buffers_and_no_memory_of_the_host() -> None:
    config = configured()
    config.weight_sync.bucket_bytes = 10**6
    planned = plan(Workload(config), ONE)
    cards = budget(Workload(config), planned, ONE).accelerators
    buckets = [(need.worker, need.num_bytes) for card in cards for need in card.needs if need.part == "weight buckets"]
    assert buckets == [("rollout/0", 2 * 10**6), ("rollout/1", 2 * 10**6)]
    buffers = weight_buffers(Workload(config), planned, 10**9)
    assert buffers.host == buffers.store == {}
    config.weight_sync.transport = STORE
    assert weight_buffers(Workload(config), planned, 10**9).host == {"train-0": 10**9}


def test_buckets_without_room_on_the_accelerator_go_through_the_host() -> None:
    config = configured()
    config.auto = []
    assert choose(Workload(config), ONE).sentences == ()
    config = configured()
    config.auto = []
    config.weight_sync.bucket_bytes = 50 * 10**9  # two of them are more than a card has
    chosen = choose(Workload(config), ONE)
    (sentence,) = chosen.sentences
    assert chosen.work.config.weight_sync.transport is STORE and "weight_sync.transport=object_store" in sentence
    budget(chosen.work, chosen.plan, ONE)
    config = configured()
    config.auto = []
    config.weight_sync.bucket_bytes = 50 * 10**9
    config.weight_sync.transport = DEVICE  # what was asked for is not changed
    with pytest.raises(RunError, match="GB short"):
        choose(Workload(config), ONE)


def test_the_plan_says_the_way_to_each_worker_and_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(1, 2, {"actor": "1", "rollout": "0-1", "env": "0-1"})
    planned = plan(Workload(config), ONE)
    seconds = way_seconds(Workload(config), planned, 15 * 10**9)
    assert seconds == {STORE: pytest.approx(1.2), DEVICE: pytest.approx(0.25)}
    sums = replace(budget(Workload(config), planned, ONE), weight_bytes=15 * 10**9)
    PlanPage(Fitting(Workload(config), planned, sums, (), ()), ONE).show(None)
    printed = " ".join(capsys.readouterr().out.split())
    assert "rollout/0 through shared memory in about 1.2 s: no actor rank is on its accelerator." in printed
    assert "rollout/1 through memory of their accelerators (CUDA IPC) in about 0.2 s: an actor rank is on" in printed


def test_names_of_ways() -> None:
    planned = plan(Workload(configured()), ONE)
    assert Way(0, STORE, 0, False, "").name(planned) == "the object store"
    assert Way(0, COLLECTIVE, 0, False, "").name(planned) == "a collective over gloo"
