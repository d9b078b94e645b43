"""A flow policy in shards: gradients of both samplings are those of the whole policy.

Flow-Noise runs the expert's layers several times within one forward pass, which FSDP must gather and reduce each time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rlrun.actor.process_group import Ranks
from rlrun.actor.sharding import ShardedPolicy, form_mesh
from rlrun.config.schema import ShardingStrategy
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.opening import open_policy, open_to_shard
from tests.unit.actor.rank_pool import RankPool
from tests.unit.policies.flow.test_policies import ROWS, chosen, config, frames, new_policy

RUN = ("pi05", "policy.pi.train_expert_only=false", "actor.activation_checkpointing=true")


def loss(policy: FlowPolicy, rows: slice, tokens: torch.Tensor) -> torch.Tensor:
    images, sentences, proprio = frames()
    distribution, values = policy.evaluate(images[rows], sentences[rows], proprio[rows], 1.0, tokens[rows])
    assert values is not None
    return distribution.logprobs(tokens[rows]).sum() + distribution.entropy().sum() + values.square().sum()


def largest_error(folder: str, sampling: str, sharding: ShardingStrategy) -> tuple[float, int]:
    """Return the largest relative error of a parameter's gradient, and the number of parameters with one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    run = config(*RUN, f"policy.pi.sampling={sampling}", f"actor.sharding={sharding.name}")
    whole = open_policy(folder, torch.float32, "cpu", run)
    assert isinstance(whole, FlowPolicy)
    tokens, _ = chosen(whole)
    loss(whole, slice(0, ROWS), tokens).backward()
    policy, weights = open_to_shard(folder, run)
    assert isinstance(policy, FlowPolicy)
    device = torch.device("cpu")
    sharded = ShardedPolicy(policy, run.actor, device, form_mesh(run.actor, Ranks(device), device, 60.0), weights)
    policy.device = device
    own = slice(rank * ROWS // world_size, (rank + 1) * ROWS // world_size)
    sharded.begin_backward(is_last=True)
    (world_size * loss(policy, own, tokens)).backward()
    sharded.reshard()
    found = {name: p.grad for name, p in policy.module.named_parameters() if p.grad is not None}
    expected = {name: p.grad for name, p in whole.module.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    scale = max(float(gradient.norm()) for gradient in expected.values())
    errors = []
    for name, gradient in found.items():
        whole_gradient = gradient.full_tensor()  # type: ignore[attr-defined]
        errors.append(float((whole_gradient - expected[name]).norm()) / max(float(expected[name].norm()), 1e-3 * scale))
    return max(errors), len(errors)


@pytest.mark.parametrize(
    ("sampling", "sharding"),
    [
        ("flow_noise", ShardingStrategy.full_shard),
        ("flow_sde", ShardingStrategy.shard_grad_op),
        pytest.param("flow_sde", ShardingStrategy.full_shard, marks=pytest.mark.long),
        pytest.param("flow_noise", ShardingStrategy.shard_grad_op, marks=pytest.mark.long),
    ],
)
def test_gradients_are_those_of_the_whole_policy(
    two_ranks: RankPool, tmp_path: Path, sampling: str, sharding: ShardingStrategy
) -> None:
    new_policy("pi05").save(tmp_path)
    for error, number in two_ranks.run(largest_error, str(tmp_path), sampling, sharding):
        assert error < 1e-4
        assert number > 100
