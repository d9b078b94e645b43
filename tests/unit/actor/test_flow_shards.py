"""A flow policy in shards: gradients of both samplings are those of the whole policy.

Flow-Noise runs the expert's layers several times within one forward pass, which FSDP must gather and reduce each time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rlrun.actor.process_group import Ranks
from rlrun.actor.sharding import ShardedPolicy, form_mesh
from rlrun.config.schema import ShardingStrategy
from rlrun.policies.compilation import prepare_blocks
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.opening import open_policy, open_to_shard
from tests.unit.actor.rank_pool import RankPool
from tests.unit.policies.flow.test_policies import ROWS, chosen, config, frames, new_policy

RUN = ("pi05", "actor.activation_checkpointing=true")


def loss(policy: FlowPolicy, rows: slice, tokens: torch.Tensor) -> torch.Tensor:
    images, sentences, proprio = frames()
    distribution, values = policy.evaluate(images[rows], sentences[rows], proprio[rows], 1.0, tokens[rows])
    assert values is not None
    return distribution.logprobs(tokens[rows]).sum() + distribution.entropy().sum() + values.square().sum()


def largest_error(
    folder: str, sampling: str, sharding: ShardingStrategy, *overrides: str
) -> tuple[float, int, set[type]]:
    """Return the largest relative error of a parameter's gradient, the number of parameters with one, and the types of
    frozen parameters."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own = (f"policy.path={folder}", f"policy.pi.sampling={sampling}", f"actor.sharding={sharding.name}")
    run = config(*RUN, *own, *overrides)
    whole = open_policy(folder, torch.float32, "cpu", run)
    assert isinstance(whole, FlowPolicy)
    tokens, _ = chosen(whole)
    loss(whole, slice(0, ROWS), tokens).backward()
    policy, weights = open_to_shard(folder, run)
    assert isinstance(policy, FlowPolicy)
    prepare_blocks(policy, checkpointed=run.actor.activation_checkpointing)
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
    return max(errors), len(errors), {type(p.data) for p in policy.module.parameters() if not p.requires_grad}


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
    trained = "policy.pi.train_expert_only=false"
    for error, number, _ in two_ranks.run(largest_error, str(tmp_path), sampling, sharding, trained):
        assert error < 1e-4
        assert number > 100


@pytest.mark.parametrize(
    ("sharding", "replicates", "kind"),
    [
        (ShardingStrategy.full_shard, "true", torch.Tensor),
        (ShardingStrategy.shard_grad_op, "null", torch.Tensor),
        pytest.param(ShardingStrategy.no_shard, "null", torch.Tensor, marks=pytest.mark.long),
        pytest.param(ShardingStrategy.full_shard, "null", DTensor, marks=pytest.mark.long),
    ],
)
def test_gradients_of_the_expert_beside_frozen_weights_that_are_no_shards(
    two_ranks: RankPool, tmp_path: Path, sharding: ShardingStrategy, replicates: str, kind: type
) -> None:
    new_policy("pi05").save(tmp_path)
    words = ("policy.pi.train_expert_only=true", f"actor.replicate_frozen={replicates}", "actor.num_workers=2")
    for error, number, frozen in two_ranks.run(largest_error, str(tmp_path), "flow_sde", sharding, *words):
        assert error < 1e-4
        assert number > 10 and frozen == {kind}
