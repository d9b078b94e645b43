"""RLinf's example on a node of A100s and a node of 4090s: it fits, and little crosses the link."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.placement.budget import Budget, budget
from rlrun.placement.choices import choose
from rlrun.placement.inventory import load_inventory
from rlrun.placement.workload import Workload

INVENTORY = Path(__file__).parents[3] / "configs" / "inventory_example.yaml"
RLINF_BYTES = 420e9  # traffic of its example


def of(*overrides: str) -> Budget:
    config = load(
        ["run=behavior_ppo_openvla_oft", "+placement=dual_node", f"placement.inventory={INVENTORY}", *overrides]
    )
    inventory = load_inventory(INVENTORY)
    chosen = choose(Workload(config), inventory)
    planned = chosen.plan
    assert {slot.node for slot in planned.of("env")} == {"sim-0"}
    return budget(chosen.work, planned, inventory)


@pytest.mark.parametrize("steps", [2000, 4000])
def test_a_tenth_of_the_bytes(steps: int) -> None:
    sums = of(f"env.max_control_steps={steps}", f"algorithm.horizon={steps // 8}")
    busiest = max(link.num_bytes for link in sums.links)
    assert busiest <= RLINF_BYTES / 10


def test_the_arithmetic_of_the_page() -> None:
    """docs/omnigibson.md: frames of 3 cameras go once to the policy and once to the learner; the rest is small."""
    sums = of()
    samples = 8 * 250 * 8
    frames = samples * (3 * 224 * 224 * 3 + 4 * 256)
    assert sums.observation_bytes == frames
    (up,) = [link for link in sums.links if link.source == "sim-0"]
    assert up.num_bytes == sums.observation_bytes + sums.trajectory_bytes
    assert frames <= sums.trajectory_bytes < 1.01 * frames
