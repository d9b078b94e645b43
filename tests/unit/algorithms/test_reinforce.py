"""GRPO, RLOO and REINFORCE++ against their definitions, written as loops in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlrun.algorithms.advantages import group_sums, on_one_rank
from rlrun.algorithms.algorithm import Advantages, ChunkSteps
from rlrun.config.loader import load
from rlrun.config.registry import ALGORITHMS
from rlrun.system.errors import RunError
from tests.numerics import assert_norm_close

T, B, HORIZON = 12, 8, 6


def steps(seed: int = 0, num_dropped: int = 2) -> ChunkSteps:
    """Two rollout epochs of six chunk steps in eight rows; some episodes end early, some rows are invalid."""
    random = torch.Generator().manual_seed(seed)
    ends = torch.randint(1, HORIZON, (T // HORIZON, B), generator=random)
    terminated = torch.zeros(T, B, dtype=torch.bool)
    for epoch, row in ((e, b) for e in range(T // HORIZON) for b in range(B)):
        terminated[epoch * HORIZON + ends[epoch, row], row] = True
    valid = torch.ones(T, B, dtype=torch.bool)
    valid[:HORIZON, :num_dropped] = False
    numbers = {name: torch.randn(T, B, generator=random) for name in ("rewards", "values", "next_values")}
    return ChunkSteps(
        **numbers,
        discount=torch.full((T, B), 0.9),
        terminated=terminated & valid,
        truncated=torch.zeros(T, B, dtype=torch.bool),
        goes_on=torch.zeros(T, B, dtype=torch.bool),
        valid=valid,
        group=torch.arange(B) // 4,
        horizon=HORIZON,
    )


def advantages(name: str, given: ChunkSteps, *keys: str) -> Advantages:
    config = load(["policy.kind=cnn", f"algorithm.name={name}", *keys])
    return ALGORITHMS.get(name).make(config.algorithm).advantages(given, on_one_rank)


def episodes(given: ChunkSteps) -> list[tuple[int, int, list[int]]]:
    """Return (epoch, row, chunk steps) of each episode: up to its first end."""
    found = []
    for epoch in range(T // HORIZON):
        for row in range(B):
            times = []
            for t in range(epoch * HORIZON, (epoch + 1) * HORIZON):
                if not given.valid[t, row]:
                    break
                times.append(t)
                if given.terminated[t, row]:
                    break
            found.append((epoch, row, times))
    return found


def returns_to_go(given: ChunkSteps) -> dict[tuple[int, int], float]:
    """Return (chunk step, row) -> discounted return from there on, of chunk steps of episodes."""
    rewards, found = given.rewards.double(), {}
    for _, row, times in episodes(given):
        for t in times:
            found[t, row] = float(sum(0.9 ** (u - t) * rewards[u, row] for u in times if u >= t))
    return found


def of_group(numbers: dict[tuple[int, int], float], t: int, row: int) -> dict[int, float]:
    """Return row -> number, of the rows of a row's group at a chunk step."""
    return {b: value for (u, b), value in numbers.items() if u == t and b // 4 == row // 4}


def test_rloo_compares_with_the_mean_of_the_others_at_the_same_time():
    given = steps()
    found = advantages("rloo", given, "algorithm.rloo.group_size=4")
    returns, expected = returns_to_go(given), torch.zeros(T, B, dtype=torch.float64)
    for (t, row), value in returns.items():
        others = [other for b, other in of_group(returns, t, row).items() if b != row]
        expected[t, row] = value - sum(others) / len(others) if others else 0.0
        assert found.mask[t, row]
    assert int(found.mask.sum()) == len(returns)
    assert_norm_close(found.advantages, expected, rtol=1e-5)


def test_rloo_of_whole_episodes_is_the_papers():
    given = replace(steps(), discount=torch.ones(T, B))
    found = advantages(
        "rloo", given, "algorithm.rloo.group_size=4", "algorithm.rloo.credit=episode", "algorithm.gamma=1"
    )
    scores = {(e, b): given.rewards.double()[times, b].sum() for e, b, times in episodes(given) if times}
    expected, mask = torch.zeros(T, B, dtype=torch.float64), torch.zeros(T, B, dtype=torch.bool)
    for epoch, row, times in episodes(given):
        others = [value for (e, b), value in scores.items() if e == epoch and b != row and b // 4 == row // 4]
        for t in times:
            expected[t, row] = scores[epoch, row] - sum(others) / len(others)
            mask[t, row] = True
    assert torch.equal(found.mask, mask)
    assert_norm_close(found.advantages, expected, rtol=1e-5)


def test_grpo_gives_each_chunk_step_its_own_credit():
    given = steps()
    found = advantages("grpo", given, "algorithm.grpo.group_size=4")
    returns, centred = returns_to_go(given), {}
    for (t, row), value in returns.items():
        group = of_group(returns, t, row)
        centred[t, row] = value - sum(group.values()) / len(group)
    expected = torch.zeros(T, B, dtype=torch.float64)
    for t, row in returns:
        epoch = t // HORIZON
        squares = [x * x for (u, b), x in centred.items() if u // HORIZON == epoch and b // 4 == row // 4]
        expected[t, row] = centred[t, row] / ((sum(squares) / len(squares)) ** 0.5 + 1e-6)
    assert_norm_close(found.advantages, expected, rtol=1e-5)
    of_groups = torch.tensor([[centred.get((t, row), 0.0) for row in range(B)] for t in range(T)], dtype=torch.float64)
    assert_norm_close(found.raw, of_groups, rtol=1e-5)
    assert abs(float(found.advantages.sum())) < 1e-4, "no time of an episode is repelled by what its length says"


def test_grpo_of_whole_episodes_gives_all_chunk_steps_one_number():
    given = replace(steps(), discount=torch.ones(T, B))
    keys = ["algorithm.grpo.group_size=4", "algorithm.grpo.credit=episode", "algorithm.gamma=1"]
    found = advantages("grpo", given, *keys)
    scores = {(e, b): float(given.rewards.double()[times, b].sum()) for e, b, times in episodes(given) if times}
    expected, raw = torch.zeros(T, B, dtype=torch.float64), torch.zeros(T, B, dtype=torch.float64)
    for epoch, row, times in episodes(given):
        group = torch.tensor([x for (e, b), x in scores.items() if e == epoch and b // 4 == row // 4]).double()
        for t in times:
            raw[t, row] = scores[epoch, row] - group.mean()
            expected[t, row] = raw[t, row] / (group.std() + 1e-6)
    assert_norm_close(found.advantages, expected, rtol=1e-5)
    assert_norm_close(found.raw, raw, rtol=1e-5)


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_a_discount_without_effect_is_refused(name):
    with pytest.raises(RunError) as refusal:
        load(["policy.kind=cnn", f"algorithm.name={name}", f"algorithm.{name}.credit=episode"])
    assert refusal.value.key == "algorithm.gamma" and "algorithm.gamma=1" in str(refusal.value.remedy)


def test_an_episode_without_others_teaches_rloo_nothing():
    given = steps(num_dropped=3)  # in the first epoch the first group has one row left
    found = advantages("rloo", given, "algorithm.rloo.group_size=4")
    assert (found.advantages[:HORIZON, 3] == 0).all() and found.mask[:HORIZON, 3].any()


@pytest.mark.parametrize("group_size", [1, 4])
def test_reinforce_plus_plus_normalises_returns_over_the_batch(group_size):
    given = steps()
    keys = [f"algorithm.reinforce_plus_plus.group_size={group_size}"]
    found = advantages("reinforce_plus_plus", given, *keys)
    raw, mask = torch.zeros(T, B, dtype=torch.float64), torch.zeros(T, B, dtype=torch.bool)
    returns = returns_to_go(given)
    for (t, row), value in returns.items():
        group = of_group(returns, t, row).values()
        raw[t, row] = value - (sum(group) / len(group) if group_size > 1 else 0.0)
        mask[t, row] = True
    kept = raw[mask]
    expected = torch.where(mask, (raw - kept.mean()) / (kept.std() + 1e-5), 0.0)
    assert torch.equal(found.mask, mask)
    assert_norm_close(found.raw, raw, rtol=1e-5)
    assert_norm_close(found.advantages, expected, rtol=1e-5)


EQUAL = {
    "grpo by step": ("grpo", "algorithm.grpo.credit=step"),
    "grpo by episode": ("grpo", "algorithm.grpo.credit=episode", "algorithm.gamma=1"),
    "rloo": ("rloo", "algorithm.rloo.credit=step"),
    "reinforce_plus_plus": ("reinforce_plus_plus", "algorithm.reinforce_plus_plus.group_size=8"),
}


@pytest.mark.parametrize("case", EQUAL)
def test_equal_episodes_teach_nothing_however_long_they_are(case):
    """Rounding of a group's mean is no advantage, though the deviation that divides it is nearly 0 as well."""
    long, rows = 500, 16
    none = torch.zeros(long, rows, dtype=torch.bool)
    given = ChunkSteps(
        rewards=torch.full((long, rows), 12.3),
        values=torch.zeros(long, rows),
        next_values=torch.zeros(long, rows),
        discount=torch.full((long, rows), 0.99),
        terminated=none,
        truncated=none,
        goes_on=none,
        valid=~none,
        group=torch.arange(rows) // 8,
        horizon=long,
    )
    assert not advantages(EQUAL[case][0], given, *EQUAL[case][1:]).advantages.any()


def test_group_sums_leave_invalid_rows_out():
    total, count = group_sums(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([7, 7, 8]), torch.tensor([True, True, False]))
    assert total.tolist() == [1, 1, 0] and count.tolist() == [2, 2, 0]


CASES = {
    "a group of one": (["algorithm.name=rloo", "algorithm.rloo.group_size=1"], "algorithm.rloo.group_size"),
    "a group across ranks": (
        ["algorithm.name=reinforce_plus_plus", "algorithm.reinforce_plus_plus.group_size=3"],
        "algorithm.reinforce_plus_plus.group_size",
    ),
    "episodes without their end": (
        ["algorithm.name=reinforce_plus_plus", "algorithm.horizon=4", "algorithm.global_batch_size=64"],
        "algorithm.horizon",
    ),
    "episodes that are carried": (["algorithm.name=rloo", "algorithm.carry_episodes=true"], "algorithm.carry_episodes"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_whole_episodes_cannot_have_is_refused(case):
    overrides, key = CASES[case]
    with pytest.raises(RunError) as refusal:
        load(["policy.kind=cnn", *overrides])
    assert key in [error.key for error in getattr(refusal.value, "errors", [refusal.value])]


# --- verl's published functions, in own words: one score for a sequence, which is an episode here; no discount ----


def verl_rloo(scores: torch.Tensor) -> torch.Tensor:
    """A group's scores n / (n - 1) less n / (n - 1) times their mean."""
    n = len(scores)
    return scores * n / (n - 1) - scores.mean() * n / (n - 1)


def verl_grpo(scores: torch.Tensor) -> torch.Tensor:
    """A group's scores less their mean, over their unbiased deviation."""
    return (scores - scores.mean()) / (scores.std() + 1e-6)


def verl_baseline(scores: torch.Tensor) -> torch.Tensor:
    """A group's scores less their mean, before all tokens of the batch are whitened."""
    return scores - scores.mean()


def whitened(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """x less the masked mean, over the root of the unbiased masked variance plus 1e-8; 0 elsewhere."""
    kept = x[mask]
    return torch.where(mask, (x - kept.mean()) * torch.rsqrt(kept.var() + 1e-8), 0.0)


def by_verl(given: ChunkSteps, of_group) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (advantages, mask): a function of a group's scores, repeated over the chunk steps of each episode."""
    found, mask = torch.zeros(T, B, dtype=torch.float64), torch.zeros(T, B, dtype=torch.bool)
    groups: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
    for epoch, row, times in episodes(given):
        if times:
            groups.setdefault((epoch, row // 4), []).append((row, times))
    for members in groups.values():
        scores = torch.stack([given.rewards.double()[times, row].sum() for row, times in members])
        for (row, times), advantage in zip(members, of_group(scores), strict=True):
            found[times, row], mask[times, row] = advantage, True
    return found, mask


@pytest.mark.parametrize(("name", "of_group"), [("rloo", verl_rloo), ("grpo", verl_grpo)])
def test_credit_for_whole_episodes_is_verls(name, of_group):
    given = replace(steps(seed=3), discount=torch.ones(T, B))
    keys = [f"algorithm.{name}.group_size=4", f"algorithm.{name}.credit=episode", "algorithm.gamma=1"]
    expected, mask = by_verl(given, of_group)
    found = advantages(name, given, *keys)
    assert torch.equal(found.mask, mask)
    assert_norm_close(found.advantages, expected, rtol=1e-5)


def test_the_baseline_of_reinforce_plus_plus_is_verls_for_outcomes_of_equally_long_episodes():
    """With other lengths it is not: returns to go are compared at the same time, verl's scores with all episodes."""
    given = steps(seed=3)
    terminated, rewards = torch.zeros(T, B, dtype=torch.bool), torch.zeros(T, B)
    for epoch, row in ((epoch, row) for epoch in range(T // HORIZON) for row in range(B)):
        last = epoch * HORIZON + 2 + epoch + row // 4  # alike in a group
        terminated[last, row], rewards[last, row] = True, given.rewards[last, row]
    outcomes = replace(given, terminated=terminated & given.valid, rewards=rewards, discount=torch.ones(T, B))
    centred, mask = by_verl(outcomes, verl_baseline)
    keys = ["algorithm.reinforce_plus_plus.group_size=4", "algorithm.gamma=1"]
    found = advantages("reinforce_plus_plus", outcomes, *keys)
    assert torch.equal(found.mask, mask)
    assert_norm_close(found.advantages, whitened(centred, mask), rtol=1e-4)
