"""What waves of loading need: with the mesh formed before, a rank is done loading while its peer has not begun."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from rlrun.actor.learner import Learner
from rlrun.actor.process_group import Ranks
from rlrun.actor.sharding import form_mesh
from rlrun.actor.updates import update
from rlrun.config.schema import RunConfig, ShardingStrategy
from rlrun.system.telemetry import Telemetry
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import learner, share, tiny_config, tiny_policy, trajectory


def loaded_in_turns(config: RunConfig) -> tuple[float, float]:
    """Gradient norms of an update after loading in turns, and after loading together."""
    rank, device = dist.get_rank(), torch.device("cpu")
    mesh = form_mesh(config.actor, Ranks(device), device, 60.0)
    store = dist.distributed_c10d._get_default_store()
    name = f"turn of {config.actor.sharding.value}"
    for turn in range(2):
        if rank == turn:  # anything collective in here would wait for the peer, which waits at the store
            policy, telemetry = tiny_policy(), Telemetry(f"actor/{rank}")
            made = Learner(config, policy, rank, 2, device, telemetry, mesh)
            store.set(f"{name} {turn}", "done")
        store.wait([f"{name} {turn}"], timedelta(seconds=20))
    together = learner(config)
    return update(made, share(trajectory()))["grad_norm"], update(together, share(trajectory()))["grad_norm"]


@pytest.mark.parametrize("strategy", ShardingStrategy)
def test_ranks_load_one_after_another(two_ranks: RankPool, strategy: ShardingStrategy) -> None:
    config = tiny_config(num_workers=2, sharding=strategy, fsdp_size=2)
    for in_turns, together in two_ranks.run(loaded_in_turns, config):
        assert in_turns == together > 0
