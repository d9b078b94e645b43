"""The plan of the seed configuration, slot by slot, and of a thousand nodes; every shipped placement plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.placement.budget import budget
from rlrun.placement.choices import choose
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo, load_inventory
from rlrun.placement.plan import Plan
from rlrun.placement.planner import plan
from rlrun.placement.workload import Workload

ROOT = Path(__file__).parents[2]
CASE = ROOT / "tests/data/cases/plan_dual_node.json"
A100 = Accelerator("NVIDIA A100-SXM4-80GB", 80 * 10**9, has_rt_cores=False)
RTX = Accelerator("NVIDIA GeForce RTX 4090", 24 * 10**9, has_rt_cores=True)
BATCHES = ["env.num_envs=32", "algorithm.global_batch_size=64", "actor.micro_batch_size=8"]


def as_record(planned: Plan) -> dict:
    """What a plan decides."""
    return {
        "ranks": {node.node.name: node.ranks for node in planned.nodes},
        "collectives": [planned.training_backend.value, planned.sync_backend.value],
        "slots": {
            slot.name: [slot.node, list(slot.accelerators), planned.environment(slot.role, slot.rank)]
            for slot in planned.slots
        },
    }


@pytest.mark.parametrize(
    "spelling",
    [
        [
            *("+placement=dual_node", "rollout.num_workers=4", "env.num_workers=4"),
            *("placement.roles.rollout.accelerators=0-3", "placement.roles.env.accelerators=0-3"),
        ],
        [
            *("actor.num_workers=8", "rollout.num_workers=4", "env.num_workers=4"),
            *("placement.roles.actor=0-7", "placement.roles.rollout=0-3", "placement.roles.env=8-11"),
        ],
    ],
    ids=["groups", "short"],
)
def test_the_seed_configuration(spelling: list[str]) -> None:
    """8 A100 + 8 RTX 4090; actor 0-7, rollout 0-3, env 8-11, in both spellings."""
    machines = Inventory(load_inventory(ROOT / "configs/inventory_example.yaml").nodes[:2])
    planned = plan(Workload(load(["run=debug", *spelling, *BATCHES])), machines)
    assert as_record(planned) == json.loads(CASE.read_text())


@pytest.mark.parametrize("path", sorted((ROOT / "configs/placement").glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("run", ["turning_on_radio", "picking_up_trash"])
def test_every_shipped_placement_plans(path: Path, run: str) -> None:
    """With the runs that are shipped, on the example machines; each says when to use it."""
    config = load([f"run={run}", f"placement={path.stem}"])
    machines = load_inventory(ROOT / "configs/inventory_example.yaml")
    chosen = choose(Workload(config), machines)
    planned = chosen.plan
    sums = budget(chosen.work, planned, machines)
    assert {len(planned.of(role)) for role in ("actor", "rollout", "env")} != {0} and sums.accelerators
    assert "se it" in path.read_text().replace("wherever", "Use it")


def test_three_nodes_keep_frames_at_home() -> None:
    machines = load_inventory(ROOT / "configs/inventory_example.yaml")
    planned = choose(Workload(load(["placement=three_nodes"])), machines).plan
    envs, rollouts = planned.of("env"), planned.of("rollout")
    assert all(slot.node == rollouts[slot.rank * len(rollouts) // len(envs)].node for slot in envs)


def test_a_thousand_nodes() -> None:
    """512 nodes train, 512 simulate: every accelerator once, ranks in order, links between the right nodes."""
    train = tuple(NodeInfo(f"train-{i}", "", 96, 10**12, (A100,) * 8) for i in range(512))
    sim = tuple(NodeInfo(f"sim-{i}", "", 64, 10**12, (RTX,) * 8) for i in range(512))
    machines = Inventory(train + sim)
    counts = ["actor.num_workers=4096", "rollout.num_workers=4096", "env.num_workers=4096", "env.num_envs=4096"]
    batches = [
        "sft.batch_size=4096",
        "algorithm.global_batch_size=4096",
        "actor.micro_batch_size=1",
        "algorithm.horizon=16",
    ]
    roles = ["placement.roles.actor=0-4095", "placement.roles.rollout=0-4095", "placement.roles.env=4096-8191"]
    config = load(["run=debug", *counts, *batches, *roles])
    planned = plan(Workload(config), machines)
    sums = budget(Workload(config), planned, machines)
    for rank in (0, 7, 8, 2048, 4095):
        assert (planned.slot("actor", rank).node, planned.slot("actor", rank).accelerators) == (
            f"train-{rank // 8}",
            (rank % 8,),
        )
        assert planned.slot("env", rank).node == f"sim-{rank // 8}"
    assert planned.nodes[-1].ranks == "8184-8191" and len(sums.accelerators) == 8192
    pairs = {(link.source, link.target) for link in sums.links}
    assert ("sim-511", "train-511") in pairs and ("sim-0", "train-511") not in pairs
