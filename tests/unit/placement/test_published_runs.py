"""The runs that repeat published recipes fit the example machines, and add up to the published batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.placement.budget import Budget, budget
from rlrun.placement.choices import choose
from rlrun.placement.inventory import GIGABYTE, Accelerator, Inventory, NodeInfo, load_inventory
from rlrun.placement.planner import plan
from rlrun.placement.search import ranks_of
from rlrun.placement.workload import Workload
from rlrun.system.errors import RunError

pytestmark = pytest.mark.usefixtures("known_counts")

INVENTORY = Path(__file__).parents[3] / "configs" / "inventory_example.yaml"


def sums_of(config: RunConfig, machines: Inventory) -> Budget:
    work = Workload(config)
    return budget(work, plan(work, machines), machines)


@pytest.mark.parametrize(
    ("run", "episodes", "updates"),
    [pytest.param("libero_simplevla_rl", 512, 4, marks=pytest.mark.long), ("libero_rlinf", 4096, 16)],
)
def test_a_published_run_is_planned(run: str, episodes: int, updates: int) -> None:
    config = load([f"run={run}", f"placement.inventory={INVENTORY}"])
    inventory = load_inventory(INVENTORY)
    chosen = choose(Workload(config), inventory)
    config = chosen.work.config
    planned = chosen.plan
    sums = budget(chosen.work, planned, inventory)
    assert len(planned.of("actor")) == 8 and len(planned.of("env")) >= 2 * len(planned.of("rollout"))
    assert config.algorithm.horizon * config.policy.num_action_chunks == config.env.max_control_steps == 512
    assert config.env.num_envs * config.algorithm.rollout_epochs == episodes
    assert episodes * config.algorithm.horizon == updates * config.algorithm.global_batch_size
    frames = episodes * config.algorithm.horizon * (256 * 256 * 3 + 4 * 8)
    assert sums.observation_bytes == frames


@pytest.mark.parametrize(("unit", "most"), [("chunk_steps", 8), ("episodes", 4)])
def test_ranks_share_whole_episodes_of_a_minibatch(unit: str, most: int) -> None:
    """A minibatch of four episodes has parts for four ranks, though its chunk steps divide among eight."""
    keys = (f"algorithm.minibatch_of={unit}", "algorithm.global_batch_size=256")
    config = load(["run=libero_simplevla_rl", f"placement.inventory={INVENTORY}", *keys])
    assert max(ranks_of(config, 8)) == most


def test_one_card_of_24_gb_trains_the_expert_of_pi05() -> None:
    """Its frozen weights are there once: with one rank FSDP holds none of them."""
    accelerator = Accelerator("NVIDIA GeForce RTX 4090", 24 * GIGABYTE, has_rt_cores=True)
    inventory = Inventory((NodeInfo("desk", "", 32, 128 * GIGABYTE, (accelerator,)),))
    workers = [f"{role}.num_workers=1" for role in ("actor", "rollout", "env")]
    offline = f"placement.inventory={INVENTORY}"  # the checkpoint need not be there
    small = [*workers, offline, "env.num_envs=16", "actor.micro_batch_size=8", "placement.offload=true"]
    config = load(["run=libero_pi05", *small])
    (card,) = sums_of(config, inventory).accelerators
    assert card.peak_bytes + card.held_back_bytes < 24 * GIGABYTE
    sharded = load(["run=libero_pi05", *small, "actor.replicate_frozen=false"])
    with pytest.raises(RunError, match="Accelerator 0"):
        sums_of(sharded, inventory)
