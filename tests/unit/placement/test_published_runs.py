"""The runs that repeat published recipes fit the example machines, and add up to the published batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.placement.budget import budget
from rlrun.placement.choices import choose
from rlrun.placement.inventory import load_inventory
from rlrun.placement.planner import plan

INVENTORY = Path(__file__).parents[3] / "configs" / "inventory_example.yaml"


@pytest.mark.parametrize(("run", "episodes", "updates"), [("libero_simplevla_rl", 512, 4), ("libero_rlinf", 4096, 16)])
def test_a_published_run_is_planned(run: str, episodes: int, updates: int) -> None:
    config = load([f"run={run}", f"placement.inventory={INVENTORY}"])
    inventory = load_inventory(INVENTORY)
    config, _ = choose(config, inventory)
    planned = plan(config, inventory)
    sums = budget(config, planned, inventory)
    assert len(planned.of("actor")) == 8 and len(planned.of("env")) >= 2 * len(planned.of("rollout"))
    assert config.algorithm.horizon * config.policy.num_action_chunks == config.env.max_control_steps == 512
    assert config.env.num_envs * config.algorithm.rollout_epochs == episodes
    assert episodes * config.algorithm.horizon == updates * config.algorithm.global_batch_size
    frames = episodes * config.algorithm.horizon * (256 * 256 * 3 + 4 * 8)
    assert sums.observation_bytes == frames
