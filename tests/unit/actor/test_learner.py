"""Updates on real ranks: two ranks are one, masked data is absent data, bad gradients are skipped by all."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rlrun.actor.learning_batch import with_values
from rlrun.actor.updates import update
from rlrun.algorithms.spec import PPOConfig
from rlrun.config.schema import Aggregation, MinibatchOf, Precision, RatioLevel, RunConfig, ShardingStrategy
from tests.numerics import assert_moved_alike
from tests.unit.actor import tiny_run
from tests.unit.actor.parameters import checksum_of
from tests.unit.actor.rank_pool import RankPool
from tests.unit.actor.tiny_run import T, exact, learner, share, tiny_config, trajectory, weights

Weights = dict[str, np.ndarray]

STRATEGIES = {
    "full_shard": {"sharding": ShardingStrategy.full_shard},
    "shard_grad_op": {"sharding": ShardingStrategy.shard_grad_op},
    "no_shard": {"sharding": ShardingStrategy.no_shard},
    "hybrid, groups of one": {"sharding": ShardingStrategy.hybrid_shard, "fsdp_size": 1},
    "hybrid, one group": {"sharding": ShardingStrategy.hybrid_shard, "fsdp_size": None},
    "cpu_offload": {"cpu_offload": True},
    "activation_checkpointing": {"activation_checkpointing": True},
}


def updated(config: RunConfig, num_updates: int = 2) -> tuple[Weights, dict[str, float], int]:
    """Weights, last metrics and checksum after some updates on this rank's share."""
    actor = learner(config)
    for i in range(num_updates):
        metrics = update(actor, share(trajectory(i)))
    return weights(actor), metrics, checksum_of(actor)


def assert_learned_alike(one: Weights, other: Weights) -> None:
    before = tiny_run.tiny_policy().module.state_dict()
    assert_moved_alike(before, one, other)


@pytest.mark.order_of_sums
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_equal_one_rank(one_rank: RankPool, two_ranks: RankPool, strategy: str) -> None:
    alone, alone_metrics, _ = one_rank.run(updated, tiny_config())[0]
    (first, metrics, checksum), (second, second_metrics, second_checksum) = two_ranks.run(
        updated, tiny_config(**STRATEGIES[strategy])
    )
    assert checksum == second_checksum
    assert metrics == second_metrics
    assert_learned_alike(alone, first)
    assert exact(metrics) == pytest.approx(exact(alone_metrics), rel=1e-3, abs=1e-5)
    before = tiny_run.tiny_policy().module.state_dict()
    moved = {name for name in alone if np.abs(alone[name] - before[name].numpy()).max() > 1e-5}
    assert moved == set(alone) - {"unused.weight", "unused.bias"}  # blocks and root alike


@pytest.mark.order_of_sums
@pytest.mark.parametrize(
    ("level", "aggregation"),
    [  # each level and each aggregation once, all pairs in the long tests
        pytest.param(level, aggregation, marks=() if i % len(RatioLevel) == j else pytest.mark.long)
        for i, aggregation in enumerate(Aggregation)
        for j, level in enumerate(RatioLevel)
    ],
)
def test_levels_and_aggregations_do_not_depend_on_how_rows_are_cut(
    one_rank: RankPool, two_ranks: RankPool, level: RatioLevel, aggregation: Aggregation
) -> None:
    configs = [tiny_config(micro_batch_size=size) for size in (32, 3)]
    for config in configs:
        config.algorithm.ratio_level, config.algorithm.aggregation = level, aggregation
        config.algorithm.entropy_coef, config.algorithm.kl_coef = 0.01, 0.1
    alone = one_rank.run(updated, configs[0])[0]
    cut = two_ranks.run(updated, configs[1])[0]
    assert_learned_alike(alone[0], cut[0])
    assert alone[1]["policy_loss"] == pytest.approx(cut[1]["policy_loss"], rel=1e-3, abs=1e-5)
    assert alone[1]["kl_reference"] == pytest.approx(cut[1]["kl_reference"], rel=1e-3, abs=1e-6)


def updated_row_by_row(aggregation: Aggregation) -> Weights:
    config = tiny_config()
    config.algorithm.aggregation, config.algorithm.global_batch_size = aggregation, 1
    config.algorithm.horizon = T
    return updated(config, num_updates=1)[0]


@pytest.mark.order_of_sums
def test_a_minibatch_with_a_part_of_an_episode_weighs_it_as_a_whole(one_rank: RankPool) -> None:
    """In minibatches of one chunk step, no other has a weight: all means over its tokens are one."""
    tokens, episodes = (
        one_rank.run(updated_row_by_row, aggregation)[0]
        for aggregation in (Aggregation.token_mean, Aggregation.episode_mean_token_mean)
    )
    assert_learned_alike(tokens, episodes)


def updated_in_minibatches(of: MinibatchOf) -> tuple[float, int]:
    """Return the optimizer steps of an epoch in which most episodes end before their time, and the checksum."""
    config = tiny_config(micro_batch_size=3)
    algorithm = config.algorithm
    algorithm.name, algorithm.horizon, algorithm.update_epochs, algorithm.minibatch_of = "grpo", T, 1, of
    algorithm.global_batch_size = T * tiny_run.B // 4  # two episodes
    actor, acted = learner(config), trajectory()
    acted.terminated[1, :6] = True
    metrics = update(actor, share(acted))
    return metrics["num_optimizer_steps"], checksum_of(actor)


@pytest.mark.parametrize(("of", "num_steps"), list(zip(MinibatchOf, (2, 4, 4), strict=True)))
def test_short_episodes_are_fewer_steps_only_if_chunk_steps_are_counted(
    two_ranks: RankPool, of: MinibatchOf, num_steps: int
) -> None:
    (first, checksum), (second, other) = two_ranks.run(updated_in_minibatches, of)
    assert first == second == num_steps and checksum == other


def updated_off_policy(cap: float | None, level: RatioLevel) -> tuple[Weights, dict[str, float]]:
    """Run one optimizer step on tokens of another policy, without clipping."""
    config = tiny_config()
    config.algorithm.update_epochs, config.algorithm.ratio_level = 1, level
    config.algorithm.clip_ratio_low, config.algorithm.clip_ratio_high, config.algorithm.clip_ratio_c = 1.0, 1e9, 1e9
    config.algorithm.behavior_weight_cap = cap
    actor, acted = learner(config), share(trajectory())
    with torch.no_grad():
        _, values = actor.forward(
            acted.images.reshape(-1, *acted.images.shape[2:]),
            [acted.instructions[i] for i in acted.instruction_index.flatten()],
            acted.proprio.reshape(-1, tiny_run.P),
        )
    metrics = update(actor, with_values(acted, values.numpy(), config.algorithm), int(acted.policy_version.max()) + 1)
    return weights(actor), metrics


@pytest.mark.order_of_sums
@pytest.mark.parametrize("level", list(RatioLevel))
def test_decoupled_gradients_equal_those_of_plain_ratios_without_clipping(
    two_ranks: RankPool, level: RatioLevel
) -> None:
    """At the start of an update, weight times ratio is the ratio to the policy that acted."""
    plain, plain_metrics = two_ranks.run(updated_off_policy, None, level)[0]
    decoupled, metrics = two_ranks.run(updated_off_policy, 1e9, level)[0]
    capped, _ = two_ranks.run(updated_off_policy, 0.5, level)[0]
    assert_learned_alike(plain, decoupled)
    assert max(np.abs(capped[name] - plain[name]).max() for name in plain) > 1e-5
    assert metrics["ratio"] == pytest.approx(1, abs=1e-5) and abs(plain_metrics["ratio"] - 1) > 1e-4
    assert metrics["behavior_weight"] == pytest.approx(plain_metrics["ratio"], rel=1e-4)


def updated_again(version: int | None) -> dict[str, float]:
    actor, acted = learner(tiny_config()), share(trajectory())
    return update(actor, acted, None if version is None else int(acted.policy_version.min()) + version)


def test_only_what_an_older_policy_chose_is_weighted(two_ranks: RankPool) -> None:
    new, same, old = (two_ranks.run(updated_again, version)[0] for version in (None, 0, 1))
    assert "behavior_weight" not in new and "behavior_weight" in old
    assert same == new != {name: old.get(name) for name in new}


def updated_with_values(version: int | None, gone_wrong: bool) -> Weights:
    """The critic that acted may have been mistaken about every observation that is in the trajectory."""
    config, acted = tiny_config(), share(trajectory())
    actor = learner(config)
    if gone_wrong:
        acted = with_values(acted, 9 - acted.values.flatten(), config.algorithm)
    update(actor, acted, version)
    return weights(actor)


def test_advantages_of_what_an_older_policy_chose_are_by_the_critic_of_now(two_ranks: RankPool) -> None:
    old, wrong = (two_ranks.run(updated_with_values, 1, gone_wrong)[0] for gone_wrong in (False, True))
    new, wrong_now = (two_ranks.run(updated_with_values, 0, gone_wrong)[0] for gone_wrong in (False, True))
    assert all(np.array_equal(old[name], wrong[name]) for name in old)
    assert any(np.abs(new[name] - wrong_now[name]).max() > 1e-5 for name in new)


def updated_with_little(valid_rows: int) -> tuple[Weights, dict[str, float]]:
    """Rank 1 has only `valid_rows` usable rows, of four minibatches in micro-batches of two."""
    config = tiny_config(micro_batch_size=2)
    whole = trajectory()
    valid = whole.valid.copy()
    valid[:, 4:] = False
    valid[0, 4 : 4 + valid_rows] = True
    actor = learner(config)
    metrics = update(actor, share(dataclasses.replace(whole, valid=valid)))
    return weights(actor), metrics


@pytest.mark.parametrize("valid_rows", [0, 1, 3])
def test_a_rank_with_few_or_no_usable_rows_takes_every_step(
    one_rank: RankPool, two_ranks: RankPool, valid_rows: int
) -> None:
    alone, alone_metrics = one_rank.run(updated_with_little, valid_rows)[0]
    (first, metrics), (second, _) = two_ranks.run(updated_with_little, valid_rows)
    assert_learned_alike(alone, first)
    assert_learned_alike(first, second)
    assert metrics["num_chunk_steps"] == 4 * T + valid_rows
    assert exact(metrics) == pytest.approx(exact(alone_metrics), rel=1e-3, abs=1e-5)


def nothing_usable() -> tuple[bool, dict[str, float]]:
    actor = learner(tiny_config())
    before = checksum_of(actor)
    metrics = update(actor, share(dataclasses.replace(trajectory(), valid=np.zeros((T, tiny_run.B), bool))))
    return checksum_of(actor) == before, metrics


def test_a_step_with_only_faults_changes_no_weights(two_ranks: RankPool) -> None:
    for is_unchanged, metrics in two_ranks.run(nothing_usable):
        assert is_unchanged
        assert metrics["num_optimizer_steps"] == metrics["num_chunk_steps"] == 0


def poisoned(rank: int) -> tuple[int, int, dict[str, float], int]:
    """Return checksums before and after an update with infinite rewards on `rank`, and the steps after a good one."""
    config = tiny_config()
    config.algorithm.sections = {"ppo": PPOConfig(normalize_advantages=False)}
    actor = learner(config)
    before, mine = checksum_of(actor), share(trajectory())
    if dist.get_rank() == rank:
        mine.rewards[0, 0, 0] = np.inf
    metrics = update(actor, mine)
    after = checksum_of(actor)
    update(actor, share(trajectory()))
    return before, after, metrics, actor.optimizer.num_steps


def test_non_finite_gradients_of_one_rank_are_skipped_by_all_and_counted(two_ranks: RankPool) -> None:
    for before, after, metrics, num_steps in two_ranks.run(poisoned, 1):
        assert before == after
        assert metrics["num_nonfinite"] == metrics["num_optimizer_steps"] == 2
        assert num_steps == 2  # those of the good update that followed


def moved_far(rank: int) -> tuple[dict[str, float], int, int]:
    """Old log-probabilities of `rank` are far off, so that only its own data exceed the target."""
    config = tiny_config()
    config.algorithm.target_kl = 0.5
    actor = learner(config)
    before = checksum_of(actor)
    mine = share(trajectory())
    if dist.get_rank() == rank:
        mine.logprobs[:] -= 2.0
    metrics = update(actor, mine)
    return metrics, before, checksum_of(actor)


def test_target_kl_stops_all_ranks_before_the_step(two_ranks: RankPool) -> None:
    for metrics, before, after in two_ranks.run(moved_far, 0):
        assert metrics["is_kl_stopped"] == 1.0
        assert metrics["num_optimizer_steps"] == 0
        assert before == after


def gathers(config: RunConfig) -> int:
    """All-gathers of the parameters in the second update."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    actor = learner(config)
    update(actor, share(trajectory()))
    calls = []
    plain = collectives.DefaultAllGather.__call__

    def counted(self, *arguments, **named):
        calls.append(1)
        return plain(self, *arguments, **named)

    collectives.DefaultAllGather.__call__ = counted
    try:
        update(actor, share(trajectory()))
    finally:
        collectives.DefaultAllGather.__call__ = plain
    return len(calls)


def test_accumulation_gathers_once_where_parameters_stay(two_ranks: RankPool) -> None:
    kept, split = ({"sharding": ShardingStrategy.shard_grad_op}, {"sharding": ShardingStrategy.full_shard})
    counts = {
        (name, size): two_ranks.run(gathers, tiny_config(micro_batch_size=size, **actor))[0]
        for name, actor in (("kept", kept), ("split", split))
        for size in (16, 4)
    }
    num_units, num_steps = 2, 2  # both blocks, and the root; two epochs of one step
    assert counts["kept", 16] == counts["kept", 4] == num_units * num_steps
    assert counts["split", 16] < counts["split", 4]


def precisions() -> dict[str, set[str]]:
    found = {}
    for name, param, optimizer in (("mixed", "bf16", "fp32"), ("pure", "bf16", "bf16")):
        actor = learner(tiny_config(param_precision=Precision(param), optimizer_precision=Precision(optimizer)))
        seen = []
        actor.sharded.module.blocks[0].register_forward_pre_hook(lambda _, x, seen=seen: seen.append(x[0].dtype))
        update(actor, share(trajectory()))
        states = [s["exp_avg"].dtype for s in actor.optimizer.inner.state.values()]
        masters = [p.dtype for p in actor.sharded.module.parameters() if p.requires_grad]
        found[name] = {str(x) for x in masters + states} | {f"computes in {seen[0]}"}
    return found


def test_bf16_computes_with_fp32_master_weights_unless_asked_otherwise(two_ranks: RankPool) -> None:
    found = two_ranks.run(precisions)[0]
    assert found["mixed"] == {"torch.float32", "computes in torch.bfloat16"}
    assert found["pure"] == {"torch.bfloat16", "computes in torch.bfloat16"}


def critic_first() -> tuple[set[str], set[str]]:
    """Names that moved in an update of critic warm-up, and in the one after it."""
    config = tiny_config()
    config.algorithm.sections = {"ppo": PPOConfig(critic_warmup_steps=1)}
    actor = learner(config)
    states = [weights(actor)]
    for i in range(2):
        update(actor, share(trajectory(i)))
        states.append(weights(actor))
    return tuple({n for n in a if not np.array_equal(a[n], b[n])} for a, b in itertools.pairwise(states))


def test_critic_warmup_moves_only_the_value_head(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(critic_first)[0]
    assert first == {"value_head.weight", "value_head.bias"}
    assert first < second and "pixels.weight" in second


def rates_of_warm_up() -> list[tuple[float, float, float]]:
    """Rates of policy and value head in each of four updates, after which it was, and the policy's next one."""
    config = tiny_config(lr_warmup_steps=4, lr=1e-3, value_lr=1e-2)
    config.algorithm.update_epochs = 1
    config.algorithm.sections = {"ppo": PPOConfig(critic_warmup_steps=2)}
    actor, found = learner(config), []
    for i in range(4):
        update(actor, share(trajectory(i)))
        found.append((*(group["lr"] for group in actor.optimizer.inner.param_groups), actor.optimizer.lr))
    return found


def test_the_warm_up_begins_with_the_first_step_of_the_policy(one_rank: RankPool) -> None:
    """A value head, which begins new, has its own rate at once; its warm-up takes nothing from the policy's."""
    policy, value_head, following = zip(*one_rank.run(rates_of_warm_up)[0], strict=True)
    assert value_head == (1e-2,) * 4
    assert policy[2:] == pytest.approx([0.25e-3, 0.5e-3])
    assert following == pytest.approx([0.25e-3, 0.25e-3, 0.5e-3, 0.75e-3])


def grpo(version: int | None = None) -> tuple[dict[str, float], bool, int]:
    config = tiny_config()
    config.algorithm.name = "grpo"
    actor = learner(config)
    before = weights(actor)
    metrics = update(actor, share(trajectory()), version)
    after = weights(actor)
    is_head_kept = np.array_equal(before["value_head.weight"], after["value_head.weight"])
    return (
        metrics,
        is_head_kept and not np.array_equal(before["actions.weight"], after["actions.weight"]),
        checksum_of(actor),
    )


@pytest.mark.order_of_sums
@pytest.mark.parametrize("version", [None, 1])
def test_grpo_trains_without_a_critic(one_rank: RankPool, two_ranks: RankPool, version: int | None) -> None:
    alone = one_rank.run(grpo, version)[0]
    first, second = two_ranks.run(grpo, version)
    assert ("behavior_weight" in first[0]) == (version is not None)
    assert first[1] and first[2] == second[2]
    assert "value_loss" not in first[0]
    assert exact(first[0]) == pytest.approx(exact(alone[0]), rel=1e-3, abs=1e-5)


def on_policy_gap(shift: float) -> float:
    """The logged gap when the rollout's log-probabilities are those of this very policy, shifted."""
    actor = learner(tiny_config())
    mine = share(trajectory())
    rows = mine.tokens.reshape(-1, tiny_run.K)
    with torch.no_grad():
        distribution, _ = actor.forward(
            mine.images.reshape(len(rows), *mine.images.shape[2:]),
            [mine.instructions[i] for i in mine.instruction_index.flatten()],
            mine.proprio.reshape(len(rows), -1),
        )
    logits = distribution.logits
    taken = logits.log_softmax(-1).gather(-1, torch.from_numpy(rows).long()[..., None]).squeeze(-1)
    logprobs = taken.numpy().reshape(mine.tokens.shape) + np.float32(shift)
    return update(actor, dataclasses.replace(mine, logprobs=logprobs))["rollout_logprob_gap"]


def test_rollout_logprob_gap_is_measured_before_the_first_step(two_ranks: RankPool) -> None:
    assert two_ranks.run(on_policy_gap, 0.0)[0] == pytest.approx(0.0, abs=1e-6)
    assert two_ranks.run(on_policy_gap, 0.25)[1] == pytest.approx(0.25, abs=1e-5)


def bandit(num_updates: int) -> list[float]:
    """Mean reward per update where every token below 128 earns 1: the smallest thing PPO must learn."""
    config = tiny_config(lr=1e-2)
    actor = learner(config)
    rewards = []
    for i in range(num_updates):
        mine = share(trajectory(i))
        rows = mine.images.reshape(-1, *mine.images.shape[2:])
        with torch.no_grad():
            distribution, values = actor.forward(rows, ["push"] * len(rows), mine.proprio.reshape(len(rows), -1))
        keys = np.arange(len(rows), dtype=np.uint64) + 1000 * i
        tokens = distribution.sample(keys)
        shape = mine.tokens.shape
        earned = (tokens < 128).float().view(*shape[:2], tiny_run.C, tiny_run.A).mean(-1).numpy()
        rewards.append(float(earned.mean()))
        metrics = update(
            actor,
            dataclasses.replace(
                mine,
                instructions=("push",),
                instruction_index=np.zeros(shape[:2], np.int16),
                tokens=tokens.numpy().reshape(shape),
                logprobs=distribution.logprobs(tokens).numpy().reshape(shape),
                values=values.numpy().reshape(shape[:2]),
                rewards=earned,
                step_valid=np.ones_like(mine.step_valid),
                terminated=np.ones(shape[:2], bool),
                truncated=np.zeros(shape[:2], bool),
                valid=np.ones(shape[:2], bool),
            ),
        )
        assert metrics["rollout_logprob_gap"] < 1e-5
    return rewards


@pytest.mark.order_of_sums
def test_ppo_learns_a_bandit(two_ranks: RankPool) -> None:
    rewards = two_ranks.run(bandit, 25)[0]
    assert np.mean(rewards[:3]) < 0.6
    assert np.mean(rewards[-3:]) > 0.75
