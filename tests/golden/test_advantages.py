"""GAE, group advantages and normalisation against stored cases of other trainers and slow loops.

Deliberately not reproduced, each shown by a test below: a truncated episode treated as a termination
(RLinf's GAE cuts both and patches the reward elsewhere); rewards of control steps after the end (RLinf's
chunk sum); a group of one scored by its raw return (verl).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.algorithms.advantages import chunk_rewards, first_episodes, gae, group_advantages, normalize
from tests.numerics import assert_norm_close, rounding

pytestmark = pytest.mark.order_of_sums
CASES = Path(__file__).parents[1] / "data" / "cases"
ARRAYS = np.load(CASES / "gae_cases.npz")
LISTED = {case["case"]: case["params"] for case in json.loads((CASES / "gae_cases.json").read_text())["cases"]}
NEAR = rounding(200)  # steps of the longest case


def arrays(case: str) -> dict[str, torch.Tensor]:
    return {key.split("/")[1]: torch.from_numpy(ARRAYS[key]) for key in ARRAYS.files if key.startswith(case + "/")}


def named(prefix: str) -> list[str]:
    return [case for case in LISTED if case.startswith(prefix)]


def slow_gae(rewards, values, next_values, terminated, truncated, gamma, lam) -> np.ndarray:
    """The definition as a sum, one entry at a time: sum over i of (gamma lambda)^i delta_{t+i} inside the episode."""
    num_steps, num_rows = rewards.shape
    advantages = np.zeros((num_steps, num_rows))
    for b in range(num_rows):
        for t in range(num_steps):
            weight = 1.0
            for i in range(t, num_steps):
                bootstrap = 0.0 if terminated[i, b] else gamma[i, b] * next_values[i, b]
                advantages[t, b] += weight * (rewards[i, b] + bootstrap - values[i, b])
                if terminated[i, b] or truncated[i, b]:
                    break
                weight *= gamma[i, b] * lam
    return advantages


def random_rollout(seed: int, num_steps: int = 9, num_rows: int = 5) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    floats = {
        name: torch.randn(num_steps, num_rows, generator=draw, dtype=torch.float64)
        for name in ("rewards", "values", "next_values")
    }
    terminated = torch.rand(num_steps, num_rows, generator=draw) < 0.2
    truncated = (torch.rand(num_steps, num_rows, generator=draw) < 0.2) & ~terminated
    return {**floats, "terminated": terminated, "truncated": truncated}


@pytest.mark.parametrize("case", named("trl_"))
def test_gae_equals_torchrl(case: str) -> None:
    x = {name: array.squeeze(-1).T for name, array in arrays(case).items()}
    advantages, returns = gae(
        x["reward"],
        x["state_value"],
        x["next_state_value"],
        x["terminated"],
        x["truncated"],
        LISTED[case]["gamma"],
        LISTED[case]["lam"],
    )
    assert_norm_close(advantages, x["adv"], NEAR)
    assert_norm_close(advantages, x["adv_vec"], NEAR)
    assert_norm_close(returns, x["target"], NEAR)


@pytest.mark.parametrize("case", named("rlinf_small"))
def test_gae_equals_rlinf_where_every_end_is_a_termination(case: str) -> None:
    x = arrays(case)
    ended = x["dones"][1:].bool()
    advantages, returns = gae(
        x["rewards"],
        x["values"][:-1],
        x["values"][1:],
        ended,
        torch.zeros_like(ended),
        LISTED[case]["gamma"],
        LISTED[case]["lam"],
    )
    assert_norm_close(advantages, x["adv"], NEAR)
    assert_norm_close(returns, x["returns"], NEAR)
    mask = x["loss_mask"].bool()
    assert_norm_close(normalize(x["adv"], mask)[mask], x["adv_norm"][mask], NEAR)


@pytest.mark.parametrize("case", named("rlinf_emb_chunk_level"))
def test_chunk_rewards_and_gae_equal_rlinf_chunk_level(case: str) -> None:
    x, gamma, lam = arrays(case), LISTED[case]["gamma"], LISTED[case]["lam"]
    everything = torch.ones_like(x["rewards"], dtype=torch.bool)  # RLinf also sums rewards after the end
    rewards, discount = chunk_rewards(x["rewards"], everything, gamma, per_control_step=False)
    ended = x["dones"][1:].bool().any(-1)
    values = x["values"].squeeze(-1)
    advantages, returns = gae(rewards, values[:-1], values[1:], ended, torch.zeros_like(ended), discount, lam)
    if LISTED[case]["normalize_advantages"]:
        advantages = normalize(advantages, torch.ones_like(ended))
    assert_norm_close(advantages, x["advantages"].squeeze(-1), NEAR)
    assert_norm_close(returns, x["returns"].squeeze(-1), NEAR)


def test_three_trainers_agree_on_one_long_trajectory() -> None:
    x = arrays("agree_T200_B32")
    ended = (x["terminated"] | x["truncated"]).bool()
    following = torch.cat([x["values"][1:], x["last_values"][None]])
    next_values = torch.where(ended, x["final_values"], following)
    advantages, _ = gae(
        x["rewards"], x["values"], next_values, x["terminated"], x["truncated"], **_discounts("agree_T200_B32")
    )
    assert_norm_close(advantages.double(), x["adv64"].double(), NEAR)
    for peer in ("adv_torchrl", "adv_rlinf"):
        assert_norm_close(advantages, x[peer].float(), NEAR)


def test_truncation_bootstraps_where_rlinf_patches_the_reward() -> None:
    """Our GAE with the final value equals theirs with `reward += gamma * V(final)` and a cut."""
    x, gamma = arrays("rlinf_bootstrap_standard"), LISTED["rlinf_bootstrap_standard"]["gamma"]
    truncated = x["truncations"].bool().any(-1)
    rewards, _ = chunk_rewards(x["rewards"], torch.ones_like(x["rewards"], dtype=torch.bool), gamma, False)
    patched = x["adjusted_rewards"].sum(-1)
    nothing = torch.zeros_like(rewards)
    ours, _ = gae(
        rewards[None],
        nothing[None],
        x["bootstrap_values"].squeeze(-1)[None],
        ~truncated[None],
        truncated[None],
        gamma,
        0.95,
    )
    assert_norm_close(ours[0], patched, NEAR)
    assert truncated.any() and not truncated.all()


@pytest.mark.parametrize("case", named("verl_small_tail"))
def test_gae_equals_verl_with_the_tail_masked(case: str) -> None:
    x = {name: array.T for name, array in arrays(case).items()}
    mask = x["response_mask"].bool()
    is_last = mask & ~torch.cat([mask[1:], torch.zeros_like(mask[:1])])
    next_values = torch.cat([x["values"][1:], torch.zeros_like(x["values"][:1])])
    advantages, returns = gae(
        x["token_level_rewards"], x["values"], next_values, is_last, ~mask, LISTED[case]["gamma"], LISTED[case]["lam"]
    )
    assert_norm_close(returns[mask], x["returns"][mask], NEAR)
    whitened = normalize(advantages, mask)
    assert_norm_close(whitened[mask], x["adv_whitened"][mask], 1e-3)  # their eps differs


def test_gae_equals_verl_without_ends() -> None:
    x = arrays("agree_nodone")
    values = x["values"].T
    next_values = torch.cat([values[1:], torch.zeros_like(values[:1])])
    nothing = torch.zeros(values.shape, dtype=torch.bool)
    _, returns = gae(x["rewards"].T, values, next_values, nothing, nothing, **_discounts("agree_nodone"))
    for peer in ("verl", "rlinf", "torchrl"):
        assert_norm_close(returns.T, x[f"returns_{peer}"], NEAR)


def _discounts(case: str) -> dict[str, float]:
    return {"gamma": LISTED[case]["gamma"], "gae_lambda": LISTED[case]["lam"]}


@pytest.mark.parametrize("seed", range(8))
def test_gae_equals_the_slow_sum(seed: int) -> None:
    rollout = random_rollout(seed)
    gamma = 0.5 + 0.5 * torch.rand(rollout["rewards"].shape, generator=torch.Generator().manual_seed(seed)).double()
    advantages, returns = gae(**rollout, gamma=gamma, gae_lambda=0.9)
    slow = slow_gae(*(rollout[k].numpy() for k in rollout), gamma.numpy(), 0.9)
    assert_norm_close(advantages, slow, 1e-13)
    assert_norm_close(returns, advantages + rollout["values"], 1e-13)


def test_nothing_leaks_through_an_end() -> None:
    """What comes after an end, and the value behind a terminal state, may be NaN and change nothing before."""
    rollout = random_rollout(3)
    rollout["terminated"][4], rollout["truncated"][4] = True, False
    before, _ = gae(**rollout, gamma=0.9, gae_lambda=0.9)
    for name in ("rewards", "values"):
        rollout[name][5:] = torch.nan
    rollout["next_values"][4:] = torch.nan
    after, _ = gae(**rollout, gamma=0.9, gae_lambda=0.9)
    assert_norm_close(after[:5], before[:5], 1e-13)


def test_steps_after_the_end_earn_nothing_and_take_no_time() -> None:
    rewards = torch.tensor([[[1.0, 2.0, 100.0]]])
    valid = torch.tensor([[[True, True, False]]])
    earned, discount = chunk_rewards(rewards, valid, 0.5, per_control_step=True)
    assert (float(earned), float(discount)) == (2.0, 0.25)  # 1 + 0.5 * 2, then 0.5**2
    earned, discount = chunk_rewards(rewards, valid, 0.5, per_control_step=False)
    assert (float(earned), float(discount)) == (3.0, 0.5)


def test_discount_per_control_step_equals_gae_over_single_steps() -> None:
    """With lambda 1 and values only at chunk starts, chunks of three are the same returns as single steps."""
    draw = torch.Generator().manual_seed(0)
    rewards, last = torch.randn(4, 2, 3, generator=draw).double(), torch.randn(2, generator=draw).double()
    nothing = torch.zeros(4, 2, dtype=torch.bool)
    earned, discount = chunk_rewards(rewards, torch.ones(4, 2, 3, dtype=torch.bool), 0.9, per_control_step=True)
    zeros = torch.zeros_like(earned)
    next_values = torch.cat([zeros[:-1], last[None]])
    advantages, _ = gae(earned, zeros, next_values, nothing, nothing, discount, 1.0)
    expected = [sum(0.9**k * rewards[:, b].flatten()[k] for k in range(12)) + 0.9**12 * last[b] for b in range(2)]
    assert_norm_close(advantages[0], torch.stack(expected), 1e-13)


def test_group_advantages_equal_verl() -> None:
    x = arrays("verl_grpo")
    mask = x["response_mask"].bool()
    scores = x["token_level_rewards"].sum(-1)
    advantages = group_advantages(scores, x["index"], torch.ones_like(scores, dtype=torch.bool))
    assert_norm_close(torch.where(mask, advantages[:, None], 0.0), x["adv"] * mask, NEAR)


def test_group_advantages_equal_rlinf() -> None:
    x, size = arrays("rlinf_emb_grpo"), LISTED["rlinf_emb_grpo"]["group_size"]
    mask = x["loss_mask"].bool()
    scores = torch.where(mask, x["rewards"], 0.0).sum((0, 2))
    group = torch.arange(len(scores)) // size
    advantages = group_advantages(scores, group, torch.ones_like(scores, dtype=torch.bool))
    assert_norm_close(advantages[None, :, None].expand(mask.shape)[mask], x["advantages"][mask], NEAR)


def test_group_ignores_void_rows_and_has_no_opinion_about_a_single_one() -> None:
    scores = torch.tensor([1.0, 3.0, 1e9, 7.0, torch.nan])
    group = torch.tensor([0, 0, 0, 5, 5])
    valid = torch.tensor([True, True, False, True, False])
    advantages = group_advantages(scores, group, valid)
    half = 1 / 2**0.5
    assert_norm_close(advantages, [-half, half, 0.0, 0.0, 0.0], 1e-5)  # an eps keeps it from dividing by nothing


def test_only_the_first_episode_of_a_row_counts_for_its_group() -> None:
    ended = torch.tensor([[0, 1], [1, 0], [0, 0]]).bool()
    valid = torch.tensor([[1, 1], [1, 1], [1, 1]]).bool()
    assert first_episodes(ended, valid).tolist() == [[True, True], [True, False], [False, False]]


def test_normalize_over_two_ranks_equals_one() -> None:
    draw = torch.Generator().manual_seed(1)
    x, mask = 5 + torch.randn(6, 4, generator=draw), torch.rand(6, 4, generator=draw) < 0.6
    whole = normalize(x, mask)
    halves = [(x[:, :1], mask[:, :1]), (x[:, 1:], mask[:, 1:])]
    sums: list[list[torch.Tensor]] = []
    for part, part_mask in halves:  # what each rank would contribute, recorded with the true global sums
        kept = part[part_mask].double()
        mean = x[mask].double().mean()
        sums.append([torch.stack([part_mask.sum().double(), kept.sum()]), ((kept - mean) ** 2).sum().reshape(1)])
    for rank, (part, part_mask) in enumerate(halves):
        calls = iter(range(2))
        result = normalize(part, part_mask, lambda own: _summed(own, sums, rank, next(calls)))  # noqa: B023
        assert_norm_close(result, whole[:, :1] if rank == 0 else whole[:, 1:], NEAR)
    assert whole[~mask].abs().sum() == 0
    assert_norm_close(whole[mask].std(), 1.0, 1e-4)


def _summed(own: torch.Tensor, sums: list[list[torch.Tensor]], rank: int, call: int) -> torch.Tensor:
    assert_norm_close(own, sums[rank][call], 1e-9)
    return sums[0][call] + sums[1][call]
