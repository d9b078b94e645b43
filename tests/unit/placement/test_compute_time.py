"""Floating-point operations against the model's own, counted on the meta device; seconds by hand."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rlrun.config.schema import RunConfig
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.memory import count_parameters, policy_size
from rlrun.placement.planner import plan
from rlrun.placement.step_cost import LAUNCH_S, REACHED, forward_flops, step_times, update_flops
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from rlrun.policies.openvla_oft.spec import OpenVLAOFTSettings
from rlrun.policies.size import PolicySize

WHOLE_BODY = ["base", "trunk", "arm_left", "gripper_left", "arm_right", "gripper_right"]


def published(num_images: int, controlled: list[str]) -> RunConfig:
    """The size of the 7B, without its files."""
    run = RunConfig()
    run.policy.path, run.policy.num_action_chunks, run.policy.use_proprio = "elsewhere", 8, False
    own = OpenVLAOFTSettings(max_prompt_length=50, has_action_queries=False)
    run.policy.sections = {"openvla_oft": own}
    run.policy.value_hidden_sizes = [512, 128]
    run.env.image_size, run.env.cameras, run.env.controlled = 224, ["camera"] * num_images, controlled
    return run


@pytest.mark.parametrize(("num_images", "num_actions", "controlled"), [(1, 7, ["arm_right"]), (3, 23, WHOLE_BODY)])
def test_the_published_model(num_images: int, num_actions: int, controlled: list[str]) -> None:
    run = published(num_images, controlled)
    size = policy_size(run, count_parameters(run))
    config = OpenVLAOFTConfig(
        text_config={"vocab_size": 32064, "pad_token_id": 32000},
        num_actions=num_actions,
        num_images=num_images,
        value_hidden_sizes=[512, 128],
        has_stop_token=False,
    )
    with torch.device("meta"):
        model = OpenVLAOFT(config)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, 50, dtype=torch.long), None, torch.zeros(1, 6 * num_images, 224, 224))
    assert forward_flops(size) == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert size.all_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert size.dead_parameters == sum(p.numel() for p in model.parameters() if not p.requires_grad)
    blocks = sum(p.numel() for stack in model.stacks() for block in stack for p in block.parameters())
    assert size.block_parameters == blocks


def test_adapters_and_checkpointing() -> None:
    run = published(1, ["arm_right"])
    size = policy_size(run, count_parameters(run))
    assert update_flops(run, size) == 3 * forward_flops(size)
    run.actor.activation_checkpointing = True
    assert update_flops(run, size) == 4 * forward_flops(size)
    run.actor.lora.rank = 32
    assert update_flops(run, size) == 3 * forward_flops(size)


def test_seconds_by_hand() -> None:
    """Two A100s act on and learn 256 rows of a network of 10^9 parameters; an unknown device gives None."""
    config, size = RunConfig(), PolicySize(10**9, (), 0, 0)
    machines = [Inventory((NodeInfo("n", "", 8, 10**12, (Accelerator(m, 10**11, False),) * 2),)) for m in ("A100", "X")]
    times = step_times(config, plan(config, machines[0]), size)
    rows = config.env.num_envs * config.algorithm.horizon
    assert times.act_s == pytest.approx(rows * 2e9 / 2 / (REACHED * 312e12))
    assert times.update_s == pytest.approx(rows * config.algorithm.update_epochs * 6e9 / 2 / (REACHED * 312e12))
    assert step_times(config, plan(config, machines[1]), size) is None


def test_the_slower_model_decides() -> None:
    """Ranks wait for each other, so of an A100 and an H100 the A100's peak counts."""
    config, size = RunConfig(), PolicySize(10**9, (), 0, 0)
    cards = tuple(Accelerator(model, 10**11, False) for model in ("A100", "H100"))
    machine = Inventory((NodeInfo("n", "", 8, 10**12, cards),))
    times = step_times(config, plan(config, machine), size)
    rows = config.env.num_envs * config.algorithm.horizon
    assert times is not None
    assert times.update_s == pytest.approx(rows * config.algorithm.update_epochs * 6e9 / 2 / (REACHED * 312e12))


def test_small_micro_batches_take_as_long_as_their_kernels_are_launched() -> None:
    """One H200 learns 64 rows with the published policy; two rows a pass leave it waiting, 32 do not."""
    run = published(1, ["arm_right"])
    run.actor.activation_checkpointing, run.actor.lora.rank, run.env.num_envs, run.algorithm.horizon = True, 32, 64, 1
    run.algorithm.update_epochs, run.actor.num_workers = 1, 1
    size = policy_size(run, count_parameters(run))
    machine = Inventory((NodeInfo("n", "", 8, 10**12, (Accelerator("H200", 10**12, False),)),))
    seconds = {}
    for run.actor.micro_batch_size in (2, 32):
        times = step_times(run, plan(run, machine), size)
        assert times is not None
        seconds[run.actor.micro_batch_size] = times.update_s
    num_blocks = sum(stack.num_layers for stack in size.stacks)
    assert seconds[2] == pytest.approx(32 * num_blocks * LAUNCH_S)
    assert seconds[32] == pytest.approx(64 * update_flops(run, size) / (REACHED * 989e12))
    assert seconds[2] > 5 * seconds[32]
