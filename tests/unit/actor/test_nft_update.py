"""NFT in the learner: two ranks and small micro-batches change nothing, and the first pass agrees with what acted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rlrun.actor.checkpoint import restore
from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.opening import open_policy, open_to_shard
from rlrun.system.telemetry import Telemetry
from tests.numerics import assert_moved_alike, assert_norm_close
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.test_flow_adapters import observed
from tests.unit.actor.tiny_run import B, T, exact, save_checkpoint, share
from tests.unit.policies.flow.test_policies import SENTENCES, config, new_policy

NFT = (
    *("policy.smolvla.sampling=nft", "policy.smolvla.num_points=2", "policy.smolvla.first_noise=drawn"),
    *("algorithm.name=nft", "algorithm.horizon=22", f"algorithm.global_batch_size={2 * T * B}", "actor.eps=1e-3"),
    *("algorithm.update_epochs=2", "algorithm.target_kl=null", "algorithm.kl_coef=0.1"),
    "algorithm.aggregation=chunk_mean_token_mean",
)

Weights = dict[str, np.ndarray]


def acted(policy: FlowPolicy) -> Trajectory:
    """Return made-up chunk steps with choices of `policy`; some chunks are cut short, and one row is void."""
    seen = observed(0)
    images, proprio = seen.images.reshape(T * B, 1, 32, 32, 3), seen.proprio.reshape(T * B, -1)
    sentences = [SENTENCES[i] for i in seen.instruction_index.flatten()]
    with torch.inference_mode():
        distribution, _ = policy(images, sentences, proprio, 1.0)
        tokens = distribution.sample(np.arange(T * B, dtype=np.uint64))
        logprobs = distribution.logprobs(tokens)
    chosen = {"tokens": tokens.numpy().reshape(T, B, -1), "logprobs": logprobs.numpy().reshape(T, B, -1)}
    return dataclasses.replace(seen, **chosen)


def learned(folder: str, micro_batch_size: int) -> tuple[Weights, dict[str, float]]:
    """Return the weights that moved, before and after, and the metrics of one update."""
    rank, run = dist.get_rank(), config("smolvla", *NFT, f"actor.micro_batch_size={micro_batch_size}")
    serving = open_policy(folder, torch.float32, "cpu", run)
    assert isinstance(serving, FlowPolicy)
    policy, weights = open_to_shard(folder, run)
    actor = Learner(run, policy, rank, dist.get_world_size(), "cpu", Telemetry(f"actor/{rank}"), weights=weights)
    metrics = update(actor, share(acted(serving)))
    return {name: tensor.float().cpu().numpy() for name, tensor in actor.named_weights()}, metrics


@pytest.mark.order_of_sums
def test_ranks_and_micro_batches_change_nothing(one_rank: RankPool, two_ranks: RankPool, tmp_path) -> None:
    first = new_policy("smolvla", *NFT)
    first.save(tmp_path)
    ((whole, metrics),) = one_rank.run(learned, str(tmp_path), T * B)
    ((small, of_small),) = one_rank.run(learned, str(tmp_path), 2)
    (shared, of_shared), _ = two_ranks.run(learned, str(tmp_path), 4)
    assert metrics["num_optimizer_steps"] == 2 and metrics["rollout_logprob_gap"] < 1e-5
    assert metrics["positive_loss"] > 0 < metrics["negative_loss"] and metrics["kl_exact"] > 0
    assert metrics["own_flow_error"] > 0
    assert "rollout_draws" not in metrics, "there are no log-probabilities of draws"
    before = {name: tensor.detach().numpy() for name, tensor in first.module.named_parameters() if name in whole}
    moved = {name for name in whole if np.linalg.norm(whole[name] - before[name]) > 1e-4}
    assert len(moved) > 20 and not any("value_head" in name for name in moved)
    for other, of_other in ((small, of_small), (shared, of_shared)):
        picked = [{name: held[name] for name in moved} for held in (before, other, whole)]
        assert_moved_alike(*picked, rtol=1e-2)
        assert exact(of_other) == pytest.approx(exact(metrics), rel=1e-2, abs=1e-5)


def following(folder: str, rate: float, saved: str | None) -> tuple[list[Weights], list[dict[str, float]]]:
    """Return what is sent to rollout workers after each of two updates, and metrics.

    saved: then after a third one, and after the third one of a run that was resumed from there.
    """
    rank, run = dist.get_rank(), config("smolvla", *NFT, f"algorithm.nft.acting_rate={rate}")
    serving = open_policy(folder, torch.float32, "cpu", run)
    assert isinstance(serving, FlowPolicy)

    def begin() -> Learner:
        policy, weights = open_to_shard(folder, run)
        return Learner(run, policy, rank, dist.get_world_size(), "cpu", Telemetry(f"actor/{rank}"), weights=weights)

    sent: list[Weights] = []
    metrics: list[dict[str, float]] = []

    def learn(actor: Learner) -> None:
        metrics.append(update(actor, share(acted(serving))))
        sent.append({name: tensor.float().cpu().numpy().copy() for name, tensor in actor.named_weights()})

    actor = begin()
    for _ in range(2):
        learn(actor)
    if saved is not None:
        save_checkpoint(actor, Path(saved), {"step": 2})
        learn(actor)
        resumed = begin()
        restore(resumed, Path(saved))
        learn(resumed)
    return sent, metrics


def test_the_policy_that_acts_follows_slowly_and_a_resumed_run_is_the_same(two_ranks: RankPool, tmp_path) -> None:
    """With a share of a half from the first optimizer step on."""
    first = new_policy("smolvla", *NFT)
    first.save(tmp_path / "first")
    newest, of_newest = two_ranks.run(following, str(tmp_path / "first"), 0.0, None)[0]
    slow, of_slow = two_ranks.run(following, str(tmp_path / "first"), 9.0, str(tmp_path / "saved"))[0]
    begun = {name: tensor.detach().numpy() for name, tensor in first.module.named_parameters()}
    moved = [name for name in newest[0] if np.abs(newest[0][name] - begun.get(name, newest[0][name])).max() > 1e-5]
    assert len(moved) > 20
    for name in moved:  # both learned the same in the first update
        assert_norm_close(slow[0][name] - begun[name], 0.5 * (newest[0][name] - begun[name]), 1e-2)
    assert all(np.array_equal(slow[3][name], slow[2][name]) for name in slow[2])
    assert of_slow[3] == of_slow[2]
    assert "rollout_logprob_gap" in of_slow[0] and "rollout_logprob_gap" not in of_slow[1]
    assert "rollout_logprob_gap" in of_newest[1]
