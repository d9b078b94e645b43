"""Blocks that share FSDP units: which do, and that updates come out the same to the bit."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.actor import sharding
from rlrun.actor.sharding import fsdp_units
from rlrun.actor.updates import update
from rlrun.config.schema import Precision, ShardingStrategy
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OpenVLAOFT
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import learner, share, tiny_config, trajectory, weights

CONFIGURATIONS = {
    "full_shard": {},
    "bf16": {"param_precision": Precision.bf16},
    "shard_grad_op": {"sharding": ShardingStrategy.shard_grad_op},
    "no_shard": {"sharding": ShardingStrategy.no_shard},
    "groups of one": {"sharding": ShardingStrategy.hybrid_shard, "fsdp_size": 1},
    "cpu_offload": {"cpu_offload": True},
    "activation_checkpointing": {"activation_checkpointing": True},
}


def blocks(*megabytes: int) -> list[nn.Module]:
    """Return a stack of blocks that take so much in bfloat16."""
    return [nn.Linear(1024, size * 512, bias=False, device="meta") for size in megabytes]


def sizes(*stacks: list[nn.Module]) -> list[int]:
    units = fsdp_units(stacks, width=2)
    assert [block for unit in units for block in unit] == [block for stack in stacks for block in stack]
    return [len(unit) for unit in units]


def test_neighbours_share_a_unit_as_large_as_the_largest_block() -> None:
    assert sizes(blocks(100, 30, 30, 30, 30, 30), blocks(60, 60)) == [1, 3, 2, 1, 1]


def test_blocks_that_take_little_share_a_unit_but_not_with_another_stack() -> None:
    assert sizes(blocks(1, 1, 1), blocks(1, 1)) == [2, 1, 2]
    assert sizes() == sizes([]) == []


def test_layers_of_the_seven_billion_are_alone_and_their_towers_are_in_two_units_each() -> None:
    with torch.device("meta"):
        model = OpenVLAOFT(OpenVLAOFTConfig(text_config={"vocab_size": 32064, "pad_token_id": 32000}))
    featurizer, fused, layers = (len(stack) for stack in model.stacks())
    assert sizes(*model.stacks()) == [16, featurizer - 16, 13, fused - 13, *[1] * layers]


def updated(actor: dict[str, object], is_alone: bool) -> tuple[int, dict[str, np.ndarray]]:
    """Return (units of blocks, weights) after two updates on this rank's share."""
    num_units = 0

    def divide(stacks: list[list[nn.Module]], width: int, outside: set[nn.Parameter]) -> list[list[nn.Module]]:
        nonlocal num_units
        units = [[block] for stack in stacks for block in stack] if is_alone else fsdp_units(stacks, width, outside)
        num_units = len(units)
        return units

    with mock.patch.object(sharding, "fsdp_units", divide):
        trained = learner(tiny_config(**actor))
    for i in range(2):
        update(trained, share(trajectory(i)))
    return num_units, weights(trained)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_updates_come_out_as_with_units_of_one_block(two_ranks: RankPool, name: str) -> None:
    together = two_ranks.run(updated, CONFIGURATIONS[name], False)
    alone = two_ranks.run(updated, CONFIGURATIONS[name], True)
    for (num_units, ours), (num_blocks, theirs) in zip(together, alone, strict=True):
        assert (num_units, num_blocks) == (1, 2)
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
