"""What of a trajectory is learned from: masks, gaps, groups, and how rows are cut into steps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from rlrun.actor import learning_batch as module
from rlrun.actor.learning_batch import BatchPlan, LearningBatch, padded, with_values
from rlrun.algorithms.advantages import Reduce, on_one_rank
from rlrun.algorithms.spec import Credit, GRPOConfig, PPOConfig
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import Aggregation, AlgorithmConfig, RatioLevel, RewardType
from rlrun.edges.trajectories import Trajectory
from tests.numerics import assert_norm_close, rounding
from tests.unit.actor.tiny_run import A, B, C, K, T, trajectory

ROUNDING = rounding(T)


def plain(**changes: np.ndarray):
    """Return a trajectory without ends in which all steps are valid, with changes."""
    nothing = np.zeros((T, B), bool)
    calm = {"terminated": nothing, "truncated": nothing, "valid": ~nothing, "step_valid": np.ones((T, B, C), bool)}
    return dataclasses.replace(trajectory(), **{**calm, **changes})


def learning_batch(of: Trajectory, settings: AlgorithmConfig, reduce: Reduce) -> LearningBatch:
    return module.learning_batch(of, ALGORITHMS.get(settings.name).make(settings), reduce)


def raw(settings: AlgorithmConfig, **changes: np.ndarray) -> np.ndarray:
    return learning_batch(plain(**changes), settings, on_one_rank).raw_advantages.view(T, B).numpy()


def test_tokens_of_steps_that_were_not_executed_are_masked() -> None:
    step_valid = np.ones((T, B, C), bool)
    step_valid[2, 3, 1:] = False
    valid = np.ones((T, B), bool)
    valid[1, 0] = False
    batch = learning_batch(plain(step_valid=step_valid, valid=valid), AlgorithmConfig(), on_one_rank)
    mask = batch.token_mask.view(T, B, C, A).numpy()
    np.testing.assert_array_equal(mask, np.broadcast_to((step_valid & valid[..., None])[..., None], mask.shape))
    assert batch.token_mask.shape == (T * B, K)
    assert len(batch.usable) == T * B - 1 and 1 * B + 0 not in batch.usable


def test_a_padding_row_does_not_count() -> None:
    batch = learning_batch(plain(), AlgorithmConfig(), on_one_rank)
    none = padded(np.zeros(0, np.int64), 0)
    rows = batch.rows(none, 0, torch.device("cpu")).targets
    assert len(rows.row_mask) == 1
    assert not any(mask.any() for mask in (rows.row_mask, rows.unit_mask, rows.token_mask))


def test_rows_are_padded_to_one_number_and_those_that_are_there_stay_as_they_are() -> None:
    batch = learning_batch(plain(), AlgorithmConfig(), on_one_rank)
    rows = np.array([5, 2])
    assert list(padded(rows, 4)) == [5, 2, 2, 2] and list(padded(rows, 1)) == list(padded(rows, 0)) == [5, 2]
    assert list(padded(rows[:0], 3)) == [0, 0, 0]
    longer = batch.rows(padded(rows, 4), 2, torch.device("cpu")).targets
    exact = batch.rows(rows, 2, torch.device("cpu")).targets
    for name in ("tokens", "token_mask", "unit_mask", "row_mask", "advantages"):
        assert torch.equal(getattr(longer, name)[:2], getattr(exact, name))
    assert not any(mask[2:].any() for mask in (longer.row_mask, longer.unit_mask, longer.token_mask))
    assert batch.row_mask[2]  # the batch itself is unchanged


def test_void_steps_touch_neither_statistics_nor_their_neighbours() -> None:
    settings = AlgorithmConfig()
    valid = np.ones((T, B), bool)
    valid[2, 4] = False
    broken = plain(valid=valid)
    for array in (broken.rewards, broken.values, broken.next_values):
        array[2, 4] = np.nan
    batch = learning_batch(broken, settings, on_one_rank)
    normal, mask = batch.advantages.view(T, B), torch.from_numpy(valid)
    assert normal[mask].isfinite().all() and normal[2, 4] == 0
    assert abs(float(normal[mask].mean())) < 1e-5 and abs(float(normal[mask].std()) - 1) < 1e-3
    # the step before the gap bootstraps from its own next value and uses no later step
    x = plain()
    expected = x.rewards[1, 4].sum() + settings.gamma * x.next_values[1, 4] - x.values[1, 4]
    assert_norm_close(batch.raw_advantages.view(T, B)[1, 4], expected, ROUNDING)


def test_truncated_steps_bootstrap_and_terminated_ones_do_not() -> None:
    ended = np.zeros((T, B), bool)
    ended[1] = True
    x, settings = plain(), AlgorithmConfig()
    own = x.rewards[1].sum(-1) - x.values[1]
    assert_norm_close(raw(settings, terminated=ended)[1], own, ROUNDING)
    assert_norm_close(raw(settings, truncated=ended)[1], own + settings.gamma * x.next_values[1], ROUNDING)


def test_reward_type_action_discounts_by_the_steps_that_were_taken() -> None:
    settings = AlgorithmConfig(reward_type=RewardType.action, gamma=0.5)
    settings.sections = {"ppo": PPOConfig(gae_lambda=0.0)}
    step_valid = np.ones((T, B, C), bool)
    step_valid[0, 1, 1] = False
    x = plain()
    advantages = raw(settings, step_valid=step_valid)
    whole = x.rewards[0, 0, 0] + 0.5 * x.rewards[0, 0, 1] + 0.25 * x.next_values[0, 0] - x.values[0, 0]
    short = x.rewards[0, 1, 0] + 0.5 * x.next_values[0, 1] - x.values[0, 1]
    assert_norm_close(advantages[0, :2], [whole, short], ROUNDING)


@pytest.mark.parametrize("is_carried", [False, True])
@pytest.mark.parametrize("horizon", [T, T // 2])
def test_another_critic_is_asked_of_what_is_in_the_trajectory_only(horizon: int, is_carried: bool) -> None:
    whole, settings = trajectory(), AlgorithmConfig(horizon=horizon, carry_episodes=is_carried)
    values = np.arange(T * B, dtype=np.float32)
    asked = with_values(whole, values, settings)
    assert np.array_equal(asked.values.flatten(), values)
    for t, row in np.ndindex(T, B):
        is_end = whole.terminated[t, row] or whole.truncated[t, row] or t == T - 1
        is_end = is_end or (not is_carried and t == horizon - 1)
        is_gap = not whole.valid[t, row] or (not is_end and not whole.valid[t + 1, row])
        follower = whole.next_values[t, row] if is_end or is_gap else asked.values[t + 1, row]
        assert asked.next_values[t, row] == follower


def epoch_of(whole: Trajectory, steps: slice) -> Trajectory:
    by_step = {
        field.name: getattr(whole, field.name)[steps]
        for field in dataclasses.fields(whole)
        if field.name not in ("instructions", "group", "next_proprio", "answers")
    }
    return dataclasses.replace(whole, **by_step)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_rollout_epochs_are_independent(name: str) -> None:
    whole = trajectory()
    settings = AlgorithmConfig(name=name, horizon=T // 2)
    settings.sections = {"ppo": PPOConfig(normalize_advantages=False)} if name == "ppo" else {}
    joined = learning_batch(whole, settings, on_one_rank)
    parts = [
        learning_batch(epoch_of(whole, steps), settings, on_one_rank) for steps in (slice(0, T // 2), slice(T // 2, T))
    ]
    for field in ("raw_advantages", "advantages", "returns", "row_mask", "unit_mask"):
        assert torch.equal(getattr(joined, field), torch.cat([getattr(part, field) for part in parts])), field
    assert all(part.row_mask.any() for part in parts)


def test_episodes_that_are_carried_go_on_in_the_next_rollout_epoch() -> None:
    one = raw(AlgorithmConfig(horizon=T))
    assert np.array_equal(raw(AlgorithmConfig(horizon=T // 2, carry_episodes=True)), one)
    assert not np.allclose(raw(AlgorithmConfig(horizon=T // 2))[: T // 2], one[: T // 2])


def test_grpo_compares_first_episodes_inside_a_group() -> None:
    truncated = np.zeros((T, B), bool)
    truncated[1] = True
    rewards = np.zeros((T, B, C), np.float32)
    rewards[0, :4, 0] = [1, 1, 0, 0]
    rewards[2:] = 100.0  # of second episodes: not compared
    own = GRPOConfig(credit=Credit.episode)
    settings = AlgorithmConfig(name="grpo", gamma=1.0, sections={"grpo": own})
    batch = learning_batch(plain(rewards=rewards, truncated=truncated), settings, on_one_rank)
    advantages = batch.advantages.view(T, B)
    sign = np.sqrt(3) / 2  # 0.5 over the unbiased deviation of two ones and two zeros
    assert_norm_close(advantages[1, :4], [sign, sign, -sign, -sign], 1e-4)  # an eps is added to the deviation
    assert (advantages[:, 4:] == 0).all() and (advantages[2:] == 0).all()
    assert batch.row_mask.view(T, B).sum(0).tolist() == [2] * B


def test_every_row_is_seen_once_an_epoch_in_an_order_of_its_own() -> None:
    plan = BatchPlan(num_minibatches=4, num_micro_batches=3, num_rows=5)
    rows = np.arange(50) * 7
    epochs = [plan.epoch(rows, np.random.default_rng((0, 5, epoch, 0))) for epoch in (0, 1, 0)]
    orders = [np.concatenate([part for minibatch in epoch for part in minibatch]) for epoch in epochs]
    for epoch, order in zip(epochs, orders, strict=True):
        assert sorted(order) == list(rows)
        assert [len(minibatch) for minibatch in epoch] == [3] * 4
        assert {sum(len(part) for part in minibatch) for minibatch in epoch} == {12, 13}
    assert list(orders[0]) == list(orders[2]) != list(orders[1])


class TwoRanks:
    """What BatchPlan asks of the ranks: the number of rows of each."""

    def __init__(self, *counts: int | tuple[int, ...]):
        """counts: by rank; several numbers of each rank are asked for one after the other."""
        self.answers = [list(asked) for asked in zip(*(np.atleast_1d(count).tolist() for count in counts), strict=True)]

    def gather(self, value: int) -> list[int]:
        answer = self.answers.pop(0)
        assert value in answer
        return answer


def test_the_plan_fits_the_fuller_rank() -> None:
    assert BatchPlan.for_rows(96, TwoRanks(100, 96), 64, 16) == BatchPlan(4, 2, 13)
    assert BatchPlan.for_rows(0, TwoRanks(128, 0), 256, 64) == BatchPlan(1, 2, 64)
    assert BatchPlan.for_rows(0, TwoRanks(0, 0), 256, 64).epoch(np.arange(0), np.random.default_rng(0)) == []
    assert BatchPlan.for_rows(0, TwoRanks(0, 0), 256, 64, 512).num_minibatches == 0


def test_collected_chunk_steps_fix_the_number_of_minibatches() -> None:
    """It does not follow how many are learned from, but no minibatch is empty on all ranks."""
    for usable in (512, 300, 40):
        assert BatchPlan.for_rows(usable, TwoRanks(usable, usable // 2), 256, 64, 1024).num_minibatches == 4
    assert BatchPlan.for_rows(3, TwoRanks(3, 1), 256, 64, 1024) == BatchPlan(3, 1, 1)


def drawn(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("longest", [64, 20, 2])
def test_minibatches_of_episodes_are_whole_and_as_many_however_short(longest: int) -> None:
    lengths = np.random.default_rng(1).integers(1, longest + 1, 64)  # of one of eight ranks with 64 episodes each
    episode = np.random.default_rng(2).permutation(np.arange(64).repeat(lengths)) * 3 + 1
    rows = np.arange(len(episode)) * 2
    minibatches = BatchPlan(4, 1, 0).epoch(rows, drawn(), episode)
    largest = max(len(part) for (part,) in minibatches)
    ranks = TwoRanks(*[(64, largest)] * 8)
    plan = BatchPlan.for_episodes(episode, ranks, 128, 16, [drawn()])
    assert plan == BatchPlan(4, -(-largest // 16), -(-largest // -(-largest // 16)))
    epoch = plan.epoch(rows, drawn(), episode)
    assert [len(minibatch) for minibatch in epoch] == [plan.num_micro_batches] * 4
    assert max(len(part) for minibatch in epoch for part in minibatch) <= plan.num_rows <= 16
    taken = [np.concatenate(minibatch) for minibatch in epoch]
    assert sorted(np.concatenate(taken)) == list(rows)
    found = [set(episode[part // 2]) for part in taken]
    assert [len(one) for one in found] == [16] * 4 and len(set().union(*found)) == 64


def test_unequal_ranks_take_the_same_minibatches_of_episodes() -> None:
    """The largest minibatch of any rank and epoch says how many passes there are; one rank has a single episode."""
    episode = np.repeat(np.arange(9), [1, 5, 2, 7, 3, 3, 4, 6, 5])
    own = [max(len(part) for (part,) in BatchPlan(3, 1, 0).epoch(episode, drawn(i), episode)) for i in range(2)]
    full = BatchPlan.for_episodes(episode, TwoRanks((9, max(own)), (1, 8)), 4, 4, [drawn(0), drawn(1)])
    assert full == BatchPlan(3, -(-max(own) // 4), -(-max(own) // -(-max(own) // 4)))
    single = BatchPlan.for_episodes(np.zeros(8, int), TwoRanks((9, max(own)), (1, 8)), 4, 4, [drawn(2), drawn(3)])
    assert single == full
    (kept,) = (x for x in single.epoch(np.arange(8), drawn(2), np.zeros(8, int)) if sum(map(len, x)))
    assert sum(map(len, kept)) == 8
    none = BatchPlan.for_episodes(episode[:0], TwoRanks((0, 0), (0, 0)), 4, 4, [drawn()])
    assert none.epoch(episode[:0], drawn(), episode[:0]) == []
    few = BatchPlan.for_episodes(episode[:1], TwoRanks((1, 1), (1, 1)), 1, 4, [drawn()])
    assert few.num_minibatches == 1, "two would leave one empty on both ranks"


@pytest.mark.parametrize("is_carried", [False, True])
def test_episodes_go_from_a_begin_to_an_end(is_carried: bool) -> None:
    whole, horizon = trajectory(), T // 2
    found = module.episodes_of(whole, AlgorithmConfig(horizon=horizon, carry_episodes=is_carried)).reshape(T, B)
    expected, number = np.zeros((T, B), int), 0
    for row in range(B):
        for t in range(T):
            ended = t > 0 and (whole.terminated[t - 1, row] or whole.truncated[t - 1, row])
            gap = t > 0 and not (whole.valid[t - 1, row] and whole.valid[t, row])
            number += t == 0 or ended or gap or (not is_carried and t % horizon == 0)
            expected[t, row] = number
    same = expected.ravel()[:, None] == expected.ravel()
    assert np.array_equal(found.ravel()[:, None] == found.ravel(), same)
    assert len(np.unique(found)) > B  # rows with several episodes


def test_an_algorithm_of_whole_episodes_has_one_for_each_row_and_rollout_epoch() -> None:
    found = module.episodes_of(trajectory(), AlgorithmConfig(name="grpo", horizon=T // 2)).reshape(T, B)
    assert len(np.unique(found)) == 2 * B
    assert (found[: T // 2] == found[0]).all() and (found[T // 2 :] == found[-1]).all()


@pytest.mark.parametrize("level", RatioLevel)
@pytest.mark.parametrize("aggregation", Aggregation)
def test_counts_of_rows_are_what_the_losses_divide_by(level: RatioLevel, aggregation: Aggregation) -> None:
    settings = AlgorithmConfig(ratio_level=level, aggregation=aggregation)
    batch = learning_batch(trajectory(), settings, on_one_rank)
    rows = np.array([7, 0, 5, 12])
    units = {"token": K, "action": C, "chunk": 1}[level.value]
    taken = batch.rows(rows, len(rows), torch.device("cpu")).targets
    assert taken.unit_mask.shape == taken.proximal_logprobs.shape == (4, units)
    assert torch.equal(taken.tokens, batch.tokens[rows]) and torch.equal(taken.returns, batch.returns[rows])
    for count, mask in zip(batch.counts[rows].sum(0), (taken.unit_mask, taken.token_mask), strict=False):
        expected = mask.sum() if aggregation is Aggregation.token_mean else mask.any(-1).sum()
        if aggregation is Aggregation.episode_mean_token_mean:
            continue  # see the next test
        assert count == expected
    assert batch.counts[rows, 2].sum() == taken.row_mask.sum()


@pytest.mark.parametrize("level", RatioLevel)
@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_every_episode_weighs_one_in_a_mean_over_episodes(level: RatioLevel, name: str) -> None:
    settings = AlgorithmConfig(
        name=name, horizon=T // 2, ratio_level=level, aggregation=Aggregation.episode_mean_token_mean
    )
    batch = learning_batch(trajectory(), settings, on_one_rank)
    for over, masks in enumerate((batch.unit_mask, batch.token_mask)):
        sizes = (batch.episode_units, batch.episode_tokens)[over]
        for episode in np.unique(batch.usable_episode):
            rows = np.flatnonzero(batch.episode == episode)
            assert (sizes[rows] == masks[rows].sum()).all()
            assert_norm_close(batch.counts[rows, over].sum(), 1.0, 1e-12)
    assert batch.counts[~batch.row_mask.numpy()].sum() == 0


def test_advantages_and_returns_are_clipped_and_what_is_logged_is_not() -> None:
    free = learning_batch(plain(), AlgorithmConfig(), on_one_rank)
    bounds = AlgorithmConfig(clip_advantages=0.5, clip_returns=0.1)
    batch = learning_batch(plain(), bounds, on_one_rank)
    assert free.advantages.abs().max() > 0.5 and free.returns.abs().max() > 0.1  # else nothing would be clipped
    assert torch.equal(batch.advantages, free.advantages.clamp(-0.5, 0.5))
    assert torch.equal(batch.returns, free.returns.clamp(-0.1, 0.1))
    assert torch.equal(batch.raw_advantages, free.raw_advantages)


def test_with_late_actions_those_that_were_executed_count() -> None:
    """Each action once and in order, as LateActions does: three chunks, of an episode that ends before the last one."""
    delay = 1
    numbers = np.arange(3 * C)
    length = 3 * C - delay - 1  # control steps until the time limit
    ran = numbers[:length]  # each action once, in order
    step_valid = np.zeros((T, B, C), bool)
    first = min(C - delay, length)
    step_valid[0, :, :first] = True
    step_valid[1] = True
    step_valid[2, :, : length - first - C] = True
    ended = np.zeros((T, B), bool)
    ended[2] = True
    seen = plain(step_valid=step_valid, truncated=ended)
    found = module.executed_actions(seen, AlgorithmConfig(horizon=T), delay)
    assert found[:3, 0].ravel().tolist() == np.isin(numbers, ran).tolist()
    assert module.executed_actions(seen, AlgorithmConfig(horizon=T), 0) is seen.step_valid
