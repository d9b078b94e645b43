"""The small imitating network through the learner: it imitates and is trained on alike by one rank and by two."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch.distributed as dist

from rlrun.actor.imitation import DemonstrationBatch, imitation_step
from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from rlrun.config.schema import Precision, RunConfig, ShardingStrategy
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.small.policy import SmallPolicy
from rlrun.policies.small.spec import SmallDistribution, SmallSettings
from rlrun.policies.spec import DemonstratedTask
from rlrun.system.telemetry import Telemetry
from tests.numerics import assert_moved_alike
from tests.unit.actor.parameters import checksum_of
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import A, B, C, P, T, share, tiny_config, trajectory
from tests.unit.policies.small import INSTRUCTIONS, statistics

SIDE, K = 16, C * A


def small_config(distribution: SmallDistribution, **actor: object) -> RunConfig:
    config = tiny_config(**actor)
    config.env.image_size = SIDE
    config.algorithm.imitation_coef = 0.5
    own = SmallSettings(distribution, conv_channels=[8, 16], text_hidden_size=16, hidden_sizes=[32])
    config.policy.sections = {"small": own}
    return config


def demonstrated(rows: slice) -> DemonstrationBatch:
    draw = np.random.default_rng(4)
    images = draw.integers(0, 256, (B, 1, SIDE, SIDE, 3), dtype=np.uint8)
    proprio = draw.standard_normal((B, P)).astype(np.float32)
    actions = draw.uniform(-0.5, 0.5, (B, C, A)).astype(np.float32)
    texts = tuple(INSTRUCTIONS[row % 2] for row in range(B))
    return DemonstrationBatch(images[rows], proprio[rows], texts[rows], actions[rows])


def collected(distribution: SmallDistribution) -> Trajectory:
    draw = np.random.default_rng(5)
    images = draw.integers(0, 256, (T, B, 1, SIDE, SIDE, 3), dtype=np.uint8)
    found = dataclasses.replace(trajectory(0), images=images)
    if distribution is SmallDistribution.bins:
        return found
    return dataclasses.replace(found, tokens=0.1 * draw.standard_normal((T, B, K)).astype(np.float32))


def trained(config: RunConfig) -> tuple[list[dict[str, np.ndarray]], int, float]:
    """Return the weights before and after a step of imitation and an update beside it, checksum, and the loss."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    task = DemonstratedTask(A, P, statistics(), INSTRUCTIONS, ("top",))
    policy = SmallPolicy.from_demonstrations(config, task)
    actor = Learner(config, policy, rank, world_size, "cpu", Telemetry(f"actor/{rank}"))
    shown = demonstrated(slice(rank * B // world_size, (rank + 1) * B // world_size))
    before = weights_of(actor)
    first = imitation_step(actor, shown)
    collected_here = share(collected(config.policy.section(SmallSettings).distribution))
    found = update(actor, collected_here, demonstrations=lambda num_updates, step: shown)
    assert found["num_nonfinite"] == first["num_nonfinite"] == 0
    return [before, weights_of(actor)], checksum_of(actor), first["imitation_loss"]


def weights_of(actor: Learner) -> dict[str, np.ndarray]:
    return {name: tensor.float().numpy().copy() for name, tensor in actor.named_weights()}


@pytest.mark.order_of_sums
@pytest.mark.parametrize("sharding", [ShardingStrategy.full_shard, ShardingStrategy.no_shard])
@pytest.mark.parametrize("distribution", list(SmallDistribution))
def test_it_trains_alike_under_every_strategy(
    one_rank: RankPool, two_ranks: RankPool, distribution: SmallDistribution, sharding: ShardingStrategy
) -> None:
    alone = one_rank.run(trained, small_config(distribution))[0]
    first, second = two_ranks.run(trained, small_config(distribution, sharding=sharding))
    assert first[1] == second[1]
    assert_moved_alike(alone[0][0], first[0][1], alone[0][1], rtol=1e-2)
    assert first[2] == pytest.approx(alone[2], rel=1e-4)


@pytest.mark.parametrize("distribution", list(SmallDistribution))
def test_everything_in_bf16(two_ranks: RankPool, distribution: SmallDistribution) -> None:
    half = {"param_precision": Precision.bf16, "optimizer_precision": Precision.bf16}
    first, second = two_ranks.run(trained, small_config(distribution, **half))
    assert first[1] == second[1]
