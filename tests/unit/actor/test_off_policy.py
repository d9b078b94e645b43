"""An off-policy algorithm in the learner: ranks stay equal, and a checkpoint keeps what it remembers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from rlrun.actor import checkpoint
from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from rlrun.algorithms.dsrl import Dsrl
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.opening import open_to_shard
from rlrun.system.telemetry import Telemetry
from tests.unit.actor.parameters import checksum_of
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import B, T, save_checkpoint, share, trajectory
from tests.unit.policies.flow.test_policies import chosen, config, new_policy

SAMPLING = "policy.smolvla.sampling=dsrl"
SMALL = ("algorithm.dsrl.num_updates=4", "algorithm.dsrl.warmup_steps=1", "algorithm.dsrl.hidden_sizes=[16]")


def learner(folder: str, sharding: str = "no_shard") -> Learner:
    own = ("algorithm.name=dsrl", "actor.lr=1e-2", f"actor.sharding={sharding}", *SMALL)
    run, rank = config("smolvla", SAMPLING, *own), dist.get_rank()
    policy, weights = open_to_shard(folder, run)
    return Learner(run, policy, rank, dist.get_world_size(), "cpu", Telemetry(f"actor/{rank}"), weights=weights)


def collected(seed: int, tokens: np.ndarray) -> Trajectory:
    """Return the rows of this rank, with choices among `tokens` [N, ...]."""
    rows = np.random.default_rng(seed).integers(0, len(tokens), (T, B))
    whole = trajectory(seed)
    return share(dataclasses.replace(whole, tokens=tokens[rows], step_valid=np.ones((T, B, 2), bool)))


def fingerprint(actor: Learner) -> tuple[int, list[float]]:
    """Return a checksum of the policy, and norms of what trainer."""
    assert isinstance(actor.algorithm, Dsrl)
    state = actor.algorithm.state_dict()
    norms = [float(state[name].norm()) for name in sorted(state) if not name.startswith("replay.")]
    return checksum_of(actor), norms


def interrupted(
    folder: str, saved: Path, tokens: np.ndarray, sharding: str = "no_shard"
) -> tuple[tuple, tuple, dict[str, float], int]:
    """Learn in three training steps; repeat the last one in a restored learner."""
    actor = learner(folder, sharding)
    before = checksum_of(actor)
    for step in (1, 2):
        update(actor, collected(step, tokens))
        if step == 1:
            assert checksum_of(actor) == before  # the first step only collects
    save_checkpoint(actor, saved, {"step": 2})
    last = collected(3, tokens)
    metrics = update(actor, last)
    restored = learner(folder, sharding)
    checkpoint.restore(restored, saved)
    update(restored, last)
    return fingerprint(actor), fingerprint(restored), metrics, before


def joined(folder: str, saved: Path, tokens: np.ndarray) -> tuple:
    """Learn once from a checkpoint of another number of ranks."""
    actor = learner(folder)
    checkpoint.restore(actor, saved)
    update(actor, collected(3, tokens))
    return fingerprint(actor)


@pytest.mark.parametrize(
    "sharding", ["full_shard", *(pytest.param(name, marks=pytest.mark.long) for name in ("no_shard", "shard_grad_op"))]
)
def test_ranks_stay_equal_and_a_restored_one_goes_on(
    one_rank: RankPool, two_ranks: RankPool, tmp_path: Path, sharding: str
) -> None:
    policy = new_policy("smolvla", SAMPLING)
    policy.save(tmp_path / "policy")
    tokens = chosen(policy)[0].numpy()
    arguments = (str(tmp_path / "policy"), tmp_path / "step_2", tokens)
    (first, again, metrics, before), (other, *_) = two_ranks.run(interrupted, *arguments, sharding)
    assert first == again == other
    assert first[0] != before
    assert metrics["num_optimizer_steps"] == 4
    assert metrics["num_chunk_steps"] == T * (B - 1)
    assert metrics["grad_norm"] > 0
    (alone,) = one_rank.run(joined, *arguments)
    assert alone[0] != before


def test_a_rank_that_is_new_gets_the_critics_of_the_others(
    one_rank: RankPool, two_ranks: RankPool, tmp_path: Path
) -> None:
    policy = new_policy("smolvla", SAMPLING)
    policy.save(tmp_path / "policy")
    arguments = (str(tmp_path / "policy"), tmp_path / "step_2", chosen(policy)[0].numpy())
    one_rank.run(interrupted, *arguments)
    one, other = two_ranks.run(joined, *arguments)
    assert one == other
