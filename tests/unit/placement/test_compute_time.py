"""Seconds of a training step, by hand."""

from __future__ import annotations

import pytest

from rlrun.config.registry import fill_lora
from rlrun.config.schema import RunConfig
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.planner import plan
from rlrun.placement.policy_counts import estimated
from rlrun.placement.step_cost import LAUNCH_S, REACHED, step_times
from rlrun.policies.counting import count
from rlrun.policies.openvla_oft.spec import OpenVLAOFTSettings


def published(num_images: int, controlled: list[str]) -> RunConfig:
    """The size of the 7B, without its files."""
    run = RunConfig()
    run.policy.path, run.policy.num_action_chunks, run.policy.use_proprio = "elsewhere", 8, False
    own = OpenVLAOFTSettings(max_prompt_length=50, has_action_queries=False)
    run.policy.sections = {"openvla_oft": own}
    run.policy.value_hidden_sizes = [512, 128]
    run.env.image_size, run.env.cameras, run.env.controlled = 224, ["camera"] * num_images, controlled
    return run


def test_seconds_by_hand() -> None:
    """Two A100s act on and learn 256 rows of a network of 10^9 parameters; an unknown device gives None."""
    config, counts = RunConfig(), estimated(RunConfig(), 10**9)
    machines = [Inventory((NodeInfo("n", "", 8, 10**12, (Accelerator(m, 10**11, False),) * 2),)) for m in ("A100", "X")]
    times = step_times(config, plan(config, machines[0]), counts)
    rows = config.env.num_envs * config.algorithm.horizon
    assert times.act_s == pytest.approx(rows * 2e9 / 2 / (REACHED * 312e12))
    assert times.update_s == pytest.approx(rows * config.algorithm.update_epochs * 6e9 / 2 / (REACHED * 312e12))
    assert step_times(config, plan(config, machines[1]), counts) is None


def test_the_slower_model_decides() -> None:
    """Ranks wait for each other, so of an A100 and an H100 the A100's peak counts."""
    config, counts = RunConfig(), estimated(RunConfig(), 10**9)
    cards = tuple(Accelerator(model, 10**11, False) for model in ("A100", "H100"))
    machine = Inventory((NodeInfo("n", "", 8, 10**12, cards),))
    times = step_times(config, plan(config, machine), counts)
    rows = config.env.num_envs * config.algorithm.horizon
    assert times is not None
    assert times.update_s == pytest.approx(rows * config.algorithm.update_epochs * 6e9 / 2 / (REACHED * 312e12))


def test_small_micro_batches_take_as_long_as_their_kernels_are_launched() -> None:
    """One H200 learns 64 rows with the published policy; two rows a pass leave it waiting, 32 do not."""
    run = published(1, ["arm_right"])
    run.actor.activation_checkpointing, run.actor.lora.rank, run.env.num_envs, run.algorithm.horizon = True, 32, 64, 1
    run.algorithm.update_epochs, run.actor.num_workers = 1, 1
    fill_lora(run)
    counts = count(run)
    machine = Inventory((NodeInfo("n", "", 8, 10**12, (Accelerator("H200", 10**12, False),)),))
    seconds = {}
    for run.actor.micro_batch_size in (2, 32):
        times = step_times(run, plan(run, machine), counts)
        assert times is not None
        seconds[run.actor.micro_batch_size] = times.update_s
    num_blocks = sum(len(stack.block_parameters) for stack in counts.stacks)
    assert seconds[2] == pytest.approx(32 * num_blocks * LAUNCH_S)
    assert seconds[32] == pytest.approx(64 * counts.recompute.flops / (REACHED * 989e12))
    assert seconds[2] > 5 * seconds[32]
