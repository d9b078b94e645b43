"""Whole tensors from shards of two ranks: those that torch gathers one by one, in order, by few collectives."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rlrun.actor import gathering
from rlrun.config.schema import ShardingStrategy
from rlrun.system.telemetry import Telemetry
from rlrun.workers.actor_worker import ActorWorker
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import learner, tiny_config

BUCKET_BYTES = 4000
SHARDED = [ShardingStrategy.full_shard, ShardingStrategy.hybrid_shard, ShardingStrategy.no_shard]


def differences(sharding: ShardingStrategy, dtype: torch.dtype | None, limit: int) -> tuple[list[str], int, int]:
    """Return what differs from torch's own gathering, the number of collectives, and that of tensors."""
    sharded = learner(tiny_config(sharding=sharding), width=15).sharded  # odd numbers of rows
    shards = list(sharded.shards().items())
    expected = {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in shards}
    counted, gather = [], dist.all_gather_single

    def count(*arguments: object, **named: object) -> object:
        counted.append(1)
        return gather(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "GATHERED_BYTES", limit)
        patch.setattr(dist, "all_gather_single", count)
        found = list(sharded.full_tensors(shards, dtype))
    faults = [] if [name for name, _ in found] == [name for name, _ in shards] else ["another order"]
    for name, tensor in found:
        wanted = expected[name] if dtype is None else expected[name].to(dtype)
        if tensor.dtype != wanted.dtype or not torch.equal(tensor, wanted):
            faults.append(name)
    return faults, len(counted), len(shards)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("sharding", SHARDED, ids=lambda sharding: sharding.value)
def test_order_and_bits(two_ranks: RankPool, sharding: ShardingStrategy, dtype: torch.dtype | None) -> None:
    for limit in (1, 20_000, gathering.GATHERED_BYTES):
        for faults, num_collectives, num_tensors in two_ranks.run(differences, sharding, dtype, limit):
            assert faults == []
            if sharding is ShardingStrategy.no_shard:
                assert num_collectives == 0
            else:
                most = {1: num_tensors, 20_000: num_tensors - 1, gathering.GATHERED_BYTES: 1}[limit]
                assert 1 <= num_collectives <= most


def run_alone(device: str) -> list[str]:
    """One rank has everything and sends nothing."""
    sharded = learner(tiny_config()).sharded
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(dist, "all_gather_single")
        return [name for name, tensor in sharded.full_tensors(sharded.shards().items()) if tensor.device.type != device]


def test_one_rank_asks_nobody(one_rank: RankPool) -> None:
    assert one_rank.run(run_alone, "cpu") == [[]]


def left_after_sync(is_sender: bool) -> int:
    """Return how many gatherings this rank still holds after all buckets of a version have been packed."""
    config = tiny_config()
    config.weight_sync.bucket_bytes = BUCKET_BYTES
    worker = ActorWorker(config, dist.get_rank(), Telemetry(f"actor/{dist.get_rank()}"))
    worker._learner = learner(config)
    worker.outgoing.load(worker.learner.weight_layout, worker.learner.named_weights)
    before = _collectives()
    num_buckets = worker.num_buckets()[0]
    assert num_buckets > 1
    for index in range(num_buckets):
        bucket = worker.pack(1, index, False, False if is_sender else None)
        assert (bucket is not None) == (is_sender and worker.rank == 0)
    del bucket
    return _collectives() - before


def _collectives() -> int:
    gc.collect()
    return sum(isinstance(one, gathering._Collective) for one in gc.get_objects())


@pytest.mark.parametrize("is_sender", [False, True])
def test_no_gathered_tensors_stay_on_a_rank_after_a_sync(two_ranks: RankPool, is_sender: bool) -> None:
    """The plan does not count them."""
    assert two_ranks.run(left_after_sync, is_sender) == [0, 0]
