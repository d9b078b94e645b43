"""The budget: exact for parameters and state; a full accelerator is refused with the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlrun.config.errors import RunError
from rlrun.config.schema import Precision, RunConfig, ShardingStrategy
from rlrun.placement.budget import actor_bytes, budget, count_parameters
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.planner import plan

SEVEN_BILLION = 7_541_237_184


def inventory(num_accelerators: int, memory_bytes: int) -> Inventory:
    accelerator = Accelerator("A100", memory_bytes, has_rt_cores=False)
    return Inventory((NodeInfo("n", "", 8, 10**12, (accelerator,) * num_accelerators),))


@pytest.mark.parametrize(
    ("sharding", "param", "bytes_per_parameter"),
    [
        (ShardingStrategy.no_shard, Precision.fp32, 4 + 4 + 8),
        (ShardingStrategy.no_shard, Precision.bf16, 2 + 4 + 8 + 4),  # with fp32 master weights
        (ShardingStrategy.full_shard, Precision.bf16, (2 + 4 + 8 + 4) / 8),
        (ShardingStrategy.shard_grad_op, Precision.bf16, 2 + (4 + 8 + 4) / 8),
        (ShardingStrategy.hybrid_shard, Precision.bf16, (2 + 4 + 8 + 4) / 4),
    ],
)
def test_actor_bytes_by_hand(sharding: ShardingStrategy, param: Precision, bytes_per_parameter: float) -> None:
    config = RunConfig()
    config.actor.num_workers, config.actor.fsdp_size = 8, 4
    config.actor.sharding, config.actor.param_precision = sharding, param
    assert actor_bytes(config, 8000) == 8000 * bytes_per_parameter


def test_parameters_of_a_checkpoint_are_counted(tmp_path: Path) -> None:
    save_file({"a": np.zeros((3, 5), np.float32), "b": np.zeros((), np.float32)}, tmp_path / "model-1.safetensors")
    save_file({"c": np.zeros(7, np.float16)}, tmp_path / "model-2.safetensors")
    config = RunConfig()
    config.policy.path = str(tmp_path)
    assert count_parameters(config.policy) == 3 * 5 + 1 + 7


def test_small_policy_is_about_right() -> None:
    assert 500_000 < count_parameters(RunConfig().policy) < 3_000_000


def test_full_accelerator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """7B, two 80 GB accelerators, fp32: 60 GB of actor and 30 GB of rollout do not fit, but do in turns."""
    monkeypatch.setattr("rlrun.placement.budget.count_parameters", lambda policy: SEVEN_BILLION)
    machines = inventory(2, 80 * 10**9)
    config = RunConfig()
    with pytest.raises(RunError) as refused:
        budget(config, plan(config, machines), machines)
    text = str(refused.value)
    assert "Accelerator 0 of node n (A100, 80.0 GB)" in text and "actor/0 60.3 GB + rollout/0 30.2 GB" in text
    assert "is 10.8 GB short" in text and "actor.cpu_offload=true" in text
    config.actor.cpu_offload = True
    shared = budget(config, plan(config, machines), machines)
    assert shared.accelerators[0].peak_bytes == actor_bytes(config, SEVEN_BILLION)


def test_step_bytes_follow_the_messages() -> None:
    """Observations: one 64 px frame and 61 numbers a chunk step."""
    config = RunConfig()
    sums = budget(config, plan(config, inventory(6, 10**10)), inventory(6, 10**10))
    samples = config.env.num_envs * config.algorithm.horizon
    assert sums.observation_bytes == samples * (config.env.image_size**2 * 3 * len(config.env.cameras) + 61 * 4)
    assert sums.trajectory_bytes > sums.observation_bytes
