"""SAC and RLPD in the learner: ranks stay equal, and a checkpoint goes on bit for bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rlrun.actor import checkpoint
from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from rlrun.algorithms.algorithm import DemonstratedSteps
from rlrun.algorithms.rlpd import Rlpd
from rlrun.algorithms.soft_actor_critic import SoftActorCritic
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.edges.spaces import Spaces
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.actor_critic.policy import ActorCriticPolicy
from rlrun.policies.opening import open_to_shard
from rlrun.system.errors import RunError
from rlrun.system.telemetry import Telemetry
from tests.unit.actor.parameters import checksum_of
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import B, P, T, save_checkpoint, share, trajectory

A, C = 3, 2
OWN = ("update_ratio=0.25", "hidden_sizes=[16]", "batch_size=12", "warmup=20")
EXPERT = "env.gymnasium.expert=rlrun.envs.gymnasium.experts:mountain_car"


def settings(name: str, sharding: str) -> RunConfig:
    mlp = ["policy.kind=mlp", "policy.mlp.distribution=squashed", "policy.num_action_chunks=2"]
    own = [f"algorithm.{name}.{one}" for one in (*OWN, *(["critic_steps=2", "num_critics=3"] * (name == "rlpd")))]
    run = ["run=halfcheetah", *mlp, *own, f"algorithm.name={name}", f"actor.sharding={sharding}"]
    return load([*run, "actor.lr=1e-2", "demos.noise=0", EXPERT, "policy.mlp.hidden_sizes=[16]"])


def learner(folder: str, name: str, sharding: str = "no_shard") -> Learner:
    rank, run = dist.get_rank(), settings(name, sharding)
    policy, weights = open_to_shard(folder, run)
    actor = Learner(run, policy, rank, dist.get_world_size(), "cpu", Telemetry(f"actor/{rank}"), weights=weights)
    if isinstance(actor.algorithm, Rlpd):
        actor.algorithm.take_demonstrations(demonstrated(), policy)
    return actor


def demonstrated() -> DemonstratedSteps:
    draw = np.random.default_rng(9)
    states, actions = draw.normal(size=(2, 30, P)).astype(np.float32), draw.normal(size=(30, C, A)).astype(np.float32)
    rewards = torch.from_numpy(draw.normal(size=30).astype(np.float32))
    return DemonstratedSteps(states[0], actions, rewards, torch.full((30,), 0.9), rewards > 1, states[1])


def collected(seed: int) -> Trajectory:
    """Return the rows of this rank; the next observations are made up."""
    draw, whole = np.random.default_rng(seed), trajectory(seed)
    tokens = draw.normal(size=(T, B, C * A)).astype(np.float32)
    following = draw.normal(size=whole.proprio.shape).astype(np.float32)
    return share(dataclasses.replace(whole, tokens=tokens, next_proprio=following))


def fingerprint(actor: Learner) -> tuple[int, list[float]]:
    """Return a checksum of the policy, and norms of the critics and their optimizers."""
    assert isinstance(actor.algorithm, SoftActorCritic)
    state = actor.algorithm.state_dict()
    return checksum_of(actor), [float(state[name].norm()) for name in sorted(state) if not name.startswith("replay.")]


def interrupted(folder: str, saved: Path, name: str, sharding: str) -> tuple[tuple, tuple, dict[str, float], int, bool]:
    """Learn in three training steps; repeat the last one in a restored learner."""
    actor = learner(folder, name, sharding)
    before = checksum_of(actor)
    update(actor, collected(1))
    update(actor, collected(2))
    save_checkpoint(actor, saved, {"step": 2})
    metrics = update(actor, collected(3))
    restored = learner(folder, name, sharding)
    checkpoint.restore(restored, saved)
    update(restored, collected(3))
    states = (actor.algorithm.state_dict(), restored.algorithm.state_dict())
    is_same = all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    return fingerprint(actor), fingerprint(restored), metrics, before, is_same


def joined(folder: str, saved: Path, name: str) -> tuple[tuple, dict[str, float]]:
    """Learn once from a checkpoint of another number of ranks."""
    actor = learner(folder, name)
    checkpoint.restore(actor, saved)
    metrics = update(actor, collected(3))
    return fingerprint(actor), metrics


def new_policy(folder: Path, name: str) -> str:
    spaces = Spaces(A, None, (-1.0,) * A, (1.0,) * A, P, 0)
    ActorCriticPolicy.from_scratch(settings(name, "no_shard"), spaces).save(folder)
    return str(folder)


@pytest.mark.parametrize(("name", "sharding"), [("sac", "no_shard"), ("rlpd", "no_shard"), ("rlpd", "full_shard")])
def test_ranks_stay_equal_and_a_restored_one_goes_on_bit_for_bit(
    one_rank: RankPool, two_ranks: RankPool, tmp_path: Path, name: str, sharding: str
) -> None:
    folder, saved = new_policy(tmp_path / "policy", name), tmp_path / "step_2"
    (first, again, metrics, before, is_same), (other, *_, is_same_there) = two_ranks.run(
        interrupted, folder, saved, name, sharding
    )
    assert first == again == other and is_same and is_same_there
    assert first[0] != before
    assert metrics["num_chunk_steps"] == T * (B - 1)
    assert metrics["num_optimizer_steps"] == (7 if name == "sac" else 4)  # of 28 new transitions after 20 of warm-up
    ((alone, there),) = one_rank.run(joined, folder, saved, name)
    assert alone[0] != before and there["num_optimizer_steps"] == metrics["num_optimizer_steps"]


def test_a_rank_that_is_new_gets_the_critics_and_counts_of_the_others(
    one_rank: RankPool, two_ranks: RankPool, tmp_path: Path
) -> None:
    folder, saved = new_policy(tmp_path / "policy", "sac"), tmp_path / "step_2"
    one_rank.run(interrupted, folder, saved, "sac", "no_shard")
    (one, metrics), (other, _) = two_ranks.run(joined, folder, saved, "sac")
    assert one == other and metrics["num_optimizer_steps"] == 7


def joined_by_other_critics(folder: str, saved: Path) -> str:
    actor = learner(folder, "rlpd")  # its critics are three
    try:
        checkpoint.restore(actor, saved)
        update(actor, collected(3))
    except RunError as error:
        return str(error)
    return "it went on"


def test_critics_of_other_sizes_are_refused(one_rank: RankPool, tmp_path: Path) -> None:
    folder, saved = new_policy(tmp_path / "policy", "sac"), tmp_path / "step_2"
    one_rank.run(interrupted, folder, saved, "sac", "no_shard")
    told = one_rank.run(joined_by_other_critics, folder, saved)[0]
    assert "holds other critics" in told and "has another size" in told and "checkpoint.resume" in told
