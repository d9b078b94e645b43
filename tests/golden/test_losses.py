"""Policy, value, KL, entropy and imitation losses against stored cases of other trainers and slow loops.

Deliberately not reproduced, each shown by a test below: sums divided by a mask that was not broadcast
(RLinf: approx_kl and clip_fraction times the number of action tokens); masked sequences that count in a mean, or make
it NaN (RLinf seq-mean); a dual clip that the configuration names and nothing applies (RLinf's embodied path).
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.algorithms.losses import (
    aggregate,
    aggregate_logprobs,
    aggregation_counts,
    behavior_weights,
    explained_variance,
    imitation_loss,
    kl_penalty,
    masked_mean,
    ppo_policy_loss,
    value_loss,
)
from tests.numerics import assert_all_norm_close, assert_norm_close, rounding

pytestmark = pytest.mark.order_of_sums
CASES = Path(__file__).parents[1] / "data" / "cases"
ARRAYS = np.load(CASES / "ppo_cases.npz")
LISTED = {case["case"]: case["params"] for case in json.loads((CASES / "ppo_cases.json").read_text())["cases"]}
MODES = {  # verl's names: a row of the cases is a sequence, which is a chunk step here
    "token-mean": "token-mean",
    "seq-mean-token-sum": "chunk-mean-token-sum",
    "seq-mean-token-mean": "chunk-mean-token-mean",
}
OURS = (*MODES.values(), "episode-mean-token-mean")


def arrays(case: str) -> dict[str, torch.Tensor]:
    return {key.split("/", 1)[1]: torch.from_numpy(ARRAYS[key]) for key in ARRAYS.files if key.startswith(case + "/")}


def named(prefix: str) -> list[str]:
    return [case for case in LISTED if case.startswith(prefix)]


def close(actual: torch.Tensor, expected: torch.Tensor | float, scale: float = 0.0) -> None:
    """scale: the mean size of what was averaged, where it cancels."""
    assert_norm_close(actual, expected, rounding(256), scale)


# --- policy loss ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in named("verl_policy") if LISTED[c]["loss_agg_mode"] in MODES])
def test_policy_loss_equals_verl(case: str) -> None:
    x, expected, params = arrays("verl_inputs"), arrays(case), LISTED[case]
    logprobs = x["log_prob"].clone().requires_grad_()
    loss, metrics = ppo_policy_loss(
        logprobs,
        x["old_log_prob"],
        x["advantages"],
        x["response_mask"],
        params["cliprange_low"],
        params["cliprange_high"],
        params["clip_ratio_c"],
        MODES[params["loss_agg_mode"]],
    )
    loss.backward()
    close(loss, expected["loss"])
    close(logprobs.grad, expected["grad_log_prob"])
    close(metrics["clip_fraction"], expected["clipfrac"])
    close(metrics["approx_kl"], expected["ppo_kl"], (x["log_prob"] - x["old_log_prob"]).abs().mean())
    close(metrics["dual_clip_fraction"], expected["clipfrac_lower"])


@pytest.mark.parametrize("case", named("rlinf_actor"))
def test_policy_loss_equals_rlinf(case: str) -> None:
    x, expected, params = arrays("rlinf_inputs"), arrays(case), LISTED[case]
    logprobs = x["logprobs"].clone().requires_grad_()
    loss, metrics = ppo_policy_loss(
        logprobs,
        x["old_logprobs"],
        x["advantages"],
        x["loss_mask"],
        params["clip_ratio_low"],
        params["clip_ratio_high"],
        params["clip_ratio_c"],
        MODES[params["loss_agg_func"]],
    )
    loss.backward()
    close(loss, expected["loss"])
    close(logprobs.grad, expected["grad_logprobs"])
    close(metrics["approx_kl"], expected["actor.approx_kl"], (x["logprobs"] - x["old_logprobs"]).abs().mean())
    close(metrics["clip_fraction"], expected["actor.clip_fraction"])
    close(metrics["ratio"], expected["actor.ratio"])


@pytest.mark.parametrize("case", named("rlinf_emb"))
def test_ratio_levels_equal_rlinf_without_a_mask(case: str) -> None:
    x, params = arrays(case), LISTED[case]
    level = params["logprob_type"].removesuffix("_level")
    logprobs = x["logprobs"].flatten(1).clone().requires_grad_()
    values = x["values"].clone().requires_grad_()
    mask = torch.ones_like(logprobs, dtype=torch.bool)
    new, unit_mask = aggregate_logprobs(logprobs, mask, level, num_action_chunks=4)
    old, _ = aggregate_logprobs(x["old_logprobs"].flatten(1), mask, level, num_action_chunks=4)
    policy, metrics = ppo_policy_loss(
        new, old, x["advantages"], unit_mask, 0.2, 0.28, params["clip_ratio_c"], "token-mean"
    )
    critic, _ = value_loss(
        values, x["prev_values"], x["returns"], torch.ones_like(values), params["value_clip"], params["huber_delta"]
    )
    (policy + critic).backward()
    close(policy + critic, x["loss"])
    close(logprobs.grad.view(x["grad_logprobs"].shape), x["grad_logprobs"])
    close(values.grad, x["grad_values"])
    close(metrics["approx_kl"], x["actor.approx_kl"])
    close(metrics["clip_fraction"], x["actor.clip_fraction"])


def slow_policy_loss(new, old, advantages, mask, low, high, c, mode) -> tuple[float, dict[str, float]]:
    """Row by row and token by token, in Python numbers."""
    rows, every, clipped, kl = [], [], 0, []
    for i in range(len(new)):
        row = []
        for k in range(len(new[i])):
            if not mask[i][k]:
                continue
            ratio = math.exp(max(-20.0, min(20.0, new[i][k] - old[i][k])))
            plain, bounded = -advantages[i] * ratio, -advantages[i] * max(1 - low, min(1 + high, ratio))
            loss = max(plain, bounded)
            row.append(min(loss, -c * advantages[i]) if advantages[i] < 0 else loss)
            clipped += bounded > plain
            kl.append(old[i][k] - new[i][k])
        if row:
            rows.append(row)
            every += row
    sums = [sum(row) for row in rows]
    loss = {
        "token-mean": sum(every) / len(every),
        "seq-mean-token-sum": sum(sums) / len(rows),
        "seq-mean-token-mean": sum(s / len(row) for s, row in zip(sums, rows, strict=True)) / len(rows),
    }[mode]
    return loss, {"clip_fraction": clipped / len(every), "approx_kl": sum(kl) / len(kl)}


def random_tokens(seed: int, num_rows: int = 7, num_tokens: int = 6) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    old = -torch.rand(num_rows, num_tokens, generator=draw).double()
    new = old + torch.randn(num_rows, num_tokens, generator=draw).double()
    mask = torch.rand(num_rows, num_tokens, generator=draw) < 0.7
    mask[2] = False
    return new, old, torch.randn(num_rows, generator=draw).double(), mask


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_policy_loss_equals_the_slow_loop(seed: int, mode: str) -> None:
    new, old, advantages, mask = random_tokens(seed)
    loss, metrics = ppo_policy_loss(new, old, advantages, mask, 0.2, 0.28, 3.0, MODES[mode])
    expected, slow = slow_policy_loss(*(x.tolist() for x in (new, old, advantages, mask)), 0.2, 0.28, 3.0, mode)
    assert_norm_close(loss, expected, 1e-12)
    assert_all_norm_close({name: metrics[name] for name in slow}, slow, rounding(1))


@pytest.mark.parametrize("cap", [0.5, 2.0])
def test_behavior_weights_equal_the_slow_loop(cap: float) -> None:
    proximal, acted, _, mask = random_tokens(1)
    proximal[2] = math.nan  # masked
    for row, token in np.ndindex(*mask.shape):
        wanted = min(cap, math.exp(proximal[row, token] - acted[row, token])) if mask[row, token] else min(cap, 1.0)
        assert_norm_close(behavior_weights(proximal, acted, mask, cap)[row, token], wanted, 1e-12)


def test_masks_are_broadcast_before_counting() -> None:
    """A mask per row, per row with a last axis of one, and per token: one and the same numbers."""
    new, old, advantages, _ = random_tokens(0)
    results = [
        ppo_policy_loss(new, old, advantages, mask, 0.2, 0.28, 3.0, "token-mean")
        for mask in (torch.ones(7).bool(), torch.ones(7, 1).bool(), torch.ones(7, 6))
    ]
    for loss, metrics in results:
        assert_norm_close(loss, results[0][0], 1e-12)
        assert 0 <= float(metrics["clip_fraction"]) <= 1
        assert_norm_close(metrics["approx_kl"], (old - new).mean(), rounding(1))


def episode_sizes(mask: torch.Tensor) -> torch.Tensor:
    """The valid tokens of the episode of each row: the first three rows are one, the others another."""
    sizes = mask.reshape(len(mask), -1).sum(-1).double()
    return torch.cat([sizes[:3].sum().repeat(3), sizes[3:].sum().repeat(len(mask) - 3)])


@pytest.mark.parametrize("mode", OURS)
def test_masked_rows_change_nothing(mode: str) -> None:
    """Padding with masked rows, whatever they hold, leaves loss, metrics and gradients as they are."""
    new, old, advantages, mask = random_tokens(1)
    sizes = episode_sizes(mask)
    plain, before = ppo_policy_loss(new, old, advantages, mask, 0.2, 0.28, 3.0, mode, sizes)
    padded = torch.cat([new, torch.full((3, 6), torch.nan).double()]).requires_grad_()
    loss, metrics = ppo_policy_loss(
        padded,
        torch.cat([old, torch.zeros(3, 6).double()]),
        torch.cat([advantages, torch.full((3,), torch.inf).double()]),
        torch.cat([mask, torch.zeros(3, 6).bool()]),
        0.2,
        0.28,
        3.0,
        mode,
        torch.cat([sizes, torch.zeros(3)]),
    )
    loss.backward()
    assert_norm_close(loss, plain, 1e-12)
    assert_all_norm_close(metrics, before, rounding(1))
    assert padded.grad.isfinite().all() and (padded.grad[7:] == 0).all()


@pytest.mark.parametrize("mode", OURS)
def test_micro_batches_add_up_to_the_whole(mode: str) -> None:
    new, old, advantages, mask = random_tokens(2)
    sizes = episode_sizes(mask)
    whole, _ = ppo_policy_loss(new, old, advantages, mask, 0.2, 0.28, 3.0, mode, sizes)
    total = torch.zeros(())
    for rows in (slice(0, 2), slice(2, 3), slice(3, 7)):  # the last cuts no episode, the first two one
        of_rows = (x[rows] for x in (new, old, advantages, mask))
        part, _ = ppo_policy_loss(*of_rows, 0.2, 0.28, 3.0, mode, sizes[rows])
        total = total + part * aggregation_counts(mask[rows], mode, sizes[rows]).sum()
    assert_norm_close(total / aggregation_counts(mask, mode, sizes).sum(), whole, rounding(1))


def test_a_mean_over_episodes_is_verls_mean_over_sequences() -> None:
    """A sequence is cut into four chunk steps; without the sizes of episodes there is no mean."""
    x, mask = arrays("verl_agg_token-mean")["loss_mat"], arrays("verl_inputs")["response_mask"].bool()
    sizes, mode = mask.sum(-1).repeat_interleave(4), "episode-mean-token-mean"
    cut = aggregate(x.unflatten(1, (4, -1)).flatten(0, 1), mask.unflatten(1, (4, -1)).flatten(0, 1), mode, sizes)
    whole = [row[kept].double().mean() for row, kept in zip(x, mask, strict=True) if kept.any()]
    close(cut, torch.stack(whole).mean())
    with pytest.raises(ValueError, match="needs their sizes"):
        aggregate(x, mask, mode)


def test_dual_clip_bounds_the_loss_of_a_token_that_became_likely() -> None:
    new, old = torch.tensor([[5.0]]), torch.tensor([[0.0]])
    bounded, metrics = ppo_policy_loss(
        new, old, torch.tensor([-1.0]), torch.tensor([True]), 0.2, 0.28, 3.0, "token-mean"
    )
    assert (float(bounded), float(metrics["dual_clip_fraction"])) == (3.0, 1.0)
    with pytest.raises(ValueError, match="clip_ratio_c=0.5 must exceed 1"):
        ppo_policy_loss(new, old, torch.tensor([-1.0]), torch.tensor([True]), 0.2, 0.28, 0.5, "token-mean")


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    x = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="aggregation='mean' is unknown; choose one of token-mean"):
        aggregate(x, x.bool(), "mean")
    with pytest.raises(ValueError, match="ratio_level='step' is unknown; choose one of token"):
        aggregate_logprobs(x, x.bool(), "step", 2)
    with pytest.raises(ValueError, match="kl_kind='k9' is unknown; choose one of k1"):
        kl_penalty(x, x, "k9")


def test_levels_sum_only_valid_tokens() -> None:
    logprobs = torch.arange(12.0).view(1, 12)
    mask = torch.tensor([[True] * 6 + [False] * 6])
    action, action_mask = aggregate_logprobs(logprobs, mask, "action", 4)
    assert action.tolist() == [[3.0, 12.0, 0.0, 0.0]] and action_mask.tolist() == [[True, True, False, False]]
    chunk, chunk_mask = aggregate_logprobs(logprobs, mask, "chunk", 4)
    assert chunk.tolist() == [[15.0]] and chunk_mask.tolist() == [[True]]


@pytest.mark.parametrize("case", named("verl_agg"))
def test_aggregation_equals_verl(case: str) -> None:
    x, mask = arrays(case), arrays("verl_inputs")["response_mask"]
    close(aggregate(x["loss_mat"], mask, MODES[LISTED[case]["loss_agg_mode"]]), x["loss"])


# --- value loss -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", named("rlinf_critic"))
def test_value_loss_equals_rlinf(case: str) -> None:
    x, params = arrays(case), LISTED[case]
    values = x["values"].clone().requires_grad_()
    loss, metrics = value_loss(
        values, x["prev_values"], x["returns"], torch.ones_like(values), params["value_clip"], params["huber_delta"]
    )
    loss.backward()
    close(loss, x["loss"])
    close(values.grad, x["grad_values"])
    close(metrics["value_error"], (x["returns"] - x["values"]).abs().mean())


def slow_value_loss(values, old, returns, mask, clip, delta) -> float:
    losses = []
    for value, before, target, is_valid in zip(values, old, returns, mask, strict=True):
        bounded = before + max(-clip, min(clip, value - before))
        errors = [abs(v - target) for v in (value, bounded)]
        if is_valid:
            losses.append(max(0.5 * e**2 if e <= delta else delta * (e - 0.5 * delta) for e in errors))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("delta", [0.3, 10.0])
def test_value_loss_equals_the_slow_loop_and_ignores_masked_rows(delta: float) -> None:
    draw = torch.Generator().manual_seed(0)
    values, old, returns = torch.randn(3, 20, generator=draw).double()
    mask = torch.rand(20, generator=draw) < 0.6
    expected = slow_value_loss(*(x.tolist() for x in (values, old, returns, mask)), 0.2, delta)
    values = torch.where(mask, values, torch.nan).requires_grad_()
    loss, metrics = value_loss(values, old, torch.where(mask, returns, torch.inf), mask, 0.2, delta)
    loss.backward()
    assert_norm_close(loss, expected, 1e-12)
    assert values.grad.isfinite().all() and (values.grad[~mask] == 0).all()
    assert 0 <= float(metrics["value_clip_fraction"]) <= 1


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_no_clip_hides_what_is_no_number(advantage: float) -> None:
    new, old, advantages, mask = random_tokens(2)
    advantages[:], mask[:] = advantage, True
    new[0, 0] = torch.nan
    assert ppo_policy_loss(new, old, advantages, mask, 0.2, 0.28, 3.0, "token-mean")[0].isnan()
    values = torch.tensor([torch.nan, 1.0], requires_grad=True)
    loss = value_loss(values, torch.zeros(2), torch.ones(2), torch.ones(2), 0.2, 10.0)[0]
    loss.backward()
    assert loss.isnan() and values.grad[0].isnan()  # the optimizer skips a step by its gradients


def test_huber_equals_rlinf() -> None:
    x = arrays("rlinf_huber")
    expected = next(array for name, array in x.items() if name != "error")
    zeros = torch.zeros(1)
    losses = [float(value_loss(zeros, zeros, e.reshape(1), torch.ones(1), 0.2, 0.7)[0]) for e in x["error"]]
    close(torch.tensor(losses), expected)


# --- KL, entropy, imitation, explained variance -----------------------------------------------


@pytest.mark.parametrize("case", named("verl_kl") + named("rlinf_kl"))
def test_kl_penalty_equals_verl_and_rlinf(case: str) -> None:
    x = arrays(case)
    logprobs = x["logprob"].clone().requires_grad_()
    kl = kl_penalty(logprobs, x["ref_logprob"], LISTED[case]["kl_penalty"])
    kl.sum().backward()
    close(kl, x["kl"])
    close(logprobs.grad, x["grad_logprob"])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", 0.5),
        ("abs", 0.5),
        ("k2", 0.125),
        ("mse", 0.125),
        ("k3", math.exp(-0.5) - 0.5),
        ("low_var_kl", math.exp(-0.5) - 0.5),
    ],
)
def test_kl_penalty_by_hand(kind: str, expected: float) -> None:
    assert float(kl_penalty(torch.tensor(-1.0), torch.tensor(-1.5), kind)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_kl_estimates_are_unbiased(kind: str) -> None:
    """Averaged over every outcome with its probability, k1 and k3 are the KL divergence itself."""
    policy, reference = (
        torch.randn(5, generator=torch.Generator().manual_seed(s)).double().log_softmax(0) for s in (0, 1)
    )
    exact = (policy.exp() * (policy - reference)).sum()
    assert_norm_close((policy.exp() * kl_penalty(policy, reference, kind)).sum(), exact, 1e-12)


def test_entropy_mean_equals_verl() -> None:
    x = arrays("verl_entropy")
    log_probs = x["logits"].log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    close(aggregate(entropy, x["response_mask"], "token-mean"), x["entropy"])


def test_imitation_is_the_cross_entropy_of_valid_tokens() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, tokens = torch.randn(3, 4, 256, generator=draw), torch.randint(256, (3, 4), generator=draw)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    losses = [
        -math.log(math.exp(logits[i, k, tokens[i, k]]) / sum(math.exp(v) for v in logits[i, k].tolist()))
        for i, k in mask.nonzero().tolist()
    ]
    loss, metrics = imitation_loss(logits, tokens.to(torch.uint8), mask, 0.0)
    close(loss, sum(losses) / 5)
    hits = [int(logits[i, k].argmax() == tokens[i, k]) for i, k in mask.nonzero().tolist()]
    assert float(metrics["token_accuracy"]) == pytest.approx(sum(hits) / 5)


def test_smoothing_prefers_near_bins_and_vanishes_with_its_width() -> None:
    logits = torch.zeros(3, 1, 256)
    for row, bin_ in enumerate((100, 102, 150)):  # sure of the right bin, of a near one, of a far one
        logits[row, 0, bin_] = 8.0
    tokens = torch.full((1, 1), 100)
    smooth = [float(imitation_loss(logits[i : i + 1], tokens, torch.ones(1), 2.0)[0]) for i in range(3)]
    assert smooth[0] < smooth[1] < smooth[2]
    sharp, narrow = (imitation_loss(logits, tokens.expand(3, 1), torch.ones(3), width)[0] for width in (0.0, 0.05))
    close(sharp, narrow)


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([[1.0, 2.0, 3.0, torch.nan]])
    mask = torch.tensor([[True, True, True, False]])
    assert float(explained_variance(returns, returns, mask)) == 1.0
    assert float(explained_variance(torch.full_like(returns, 9.0), returns, mask)) == pytest.approx(0.0)
    assert float(explained_variance(-returns, returns, mask)) == pytest.approx(1 - 4.0)
    constant = torch.ones(1, 4)
    assert float(explained_variance(returns, constant, mask)) == 0.0


def test_explained_variance_equals_rlinf_sums() -> None:
    x = arrays("rlinf_critic_clip0.2_h10.0_mask0")
    prefix = "__sum__._critic_explained_variance."
    count, r, rr, e, ee = (
        float(x[prefix + k]) for k in ("count", "returns_sum", "returns_sq_sum", "errors_sum", "errors_sq_sum")
    )
    expected = 1 - (ee / count - (e / count) ** 2) / (rr / count - (r / count) ** 2)
    ours = explained_variance(x["values"], x["returns"], torch.ones(64).bool())
    assert float(ours) == pytest.approx(expected, rel=1e-3)


def test_masked_mean_of_nothing_is_zero() -> None:
    assert float(masked_mean(torch.tensor([torch.nan]), torch.tensor([False]))) == 0.0
