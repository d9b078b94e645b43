"""Advantages and returns from rewards and values: GAE, group comparison, normalisation.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk. Pure functions on tensors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]  # sums a small tensor over all ranks and returns the sum


def on_one_rank(sums: Tensor) -> Tensor:
    """Return `sums` unchanged: the reduction of a single rank."""
    return sums


def chunk_rewards(rewards_TBC: Tensor, step_valid_TBC: Tensor, gamma: float, per_control_step: bool) -> tuple:
    """Return (rewards [T, B], discounts [T, B]) of whole chunks.

    A chunk of n valid control steps earns their sum and discounts what follows by gamma; with
    `per_control_step` it earns the sum of gamma**k * r_k and discounts by gamma**n. Control steps
    that were not executed earn nothing and take no time.

    Example: rewards [0, 1, 9], valid [1, 1, 0], gamma 0.5 -> (1.0, 0.5), per control step (0.5, 0.25).
    """
    valid = step_valid_TBC.to(rewards_TBC.dtype)
    earned = torch.where(step_valid_TBC, rewards_TBC, 0.0)
    if not per_control_step:
        return earned.sum(-1), torch.full_like(earned[..., 0], gamma)
    steps_before = valid.cumsum(-1) - valid
    base = torch.tensor(gamma, dtype=earned.dtype, device=earned.device)
    return (base**steps_before * earned).sum(-1), base ** valid.sum(-1)


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float | Tensor,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Return (advantages, returns), both [T, B], by generalised advantage estimation.

    rewards, values: float [T, B]. next_values: float [T, B], the value of the true next observation,
    which is the final one where the episode was truncated; ignored where it terminated.
    terminated, truncated: bool [T, B]; both end the trace, only termination ends the bootstrap.
    gamma: one discount, or one per chunk step as a tensor [T, B].

    Example: one step, reward 1, value 0.5, next value 2, gamma 0.9: advantage 2.3 if the episode was
    truncated there, 0.5 if it terminated.
    """
    terminated, ended = terminated.bool(), terminated.bool() | truncated.bool()
    gamma = torch.as_tensor(gamma, dtype=rewards.dtype, device=rewards.device).expand(rewards.shape)
    # selected, not multiplied by 0, since the value after a terminal state may be NaN
    deltas = rewards + torch.where(terminated, 0.0, gamma * next_values) - values
    advantages = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        following = deltas[t] + torch.where(ended[t], 0.0, gamma[t] * gae_lambda * following)
        advantages[t] = following
    return advantages, advantages + values


def returns_to_go(rewards: Tensor, discount: Tensor) -> Tensor:
    """Return float [T, B]: the reward of each chunk step and the discounted ones after it.

    rewards: 0 outside of the episode. Example: rewards [0, 0, 1], discount 0.5 -> [0.25, 0.5, 1].
    """
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        following = rewards[t] + discount[t] * following
        returns[t] = following
    return returns


def first_episodes(ended_TB: Tensor, valid_TB: Tensor) -> Tensor:
    """Return bool [T, B]: the valid chunk steps up to and including the first end of each row."""
    ends_before = ended_TB.int().cumsum(0) - ended_TB.int()
    return (ends_before == 0) & valid_TB


def group_advantages(scores_B: Tensor, group_B: Tensor, valid_B: Tensor, eps: float = 1e-6) -> Tensor:
    """Return the advantages of GRPO, float [B]: each row's score relative to the rows with the same reset seed.

    (score - mean) / (std + eps) within the group, with unbiased std, over valid rows only. The advantage is 0 for
    invalid rows, and for a single valid row in its group.

    Example: scores [1, 0, 5], group [7, 7, 8], all valid -> [0.707, -0.707, 0].
    """
    total, count = group_sums(scores_B, group_B, valid_B)
    centred = torch.where(valid_B, scores_B - total / count.clamp(min=1), 0.0)
    square, _ = group_sums(centred**2, group_B, valid_B)
    std = (square / (count - 1).clamp(min=1)).sqrt()
    return torch.where(count > 1, centred / (std + eps), 0.0).to(scores_B.dtype)


def returns_of_episodes(rewards: Tensor, discount: Tensor, ended: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return (returns to go, mask) of one rollout epoch, both [T, B]: of the first episode of each row."""
    mask = first_episodes(ended, valid)
    return returns_to_go(torch.where(mask, rewards, 0.0), discount), mask


def group_sums_by_step(returns_TB: Tensor, mask_TB: Tensor, group_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return (sum, count), both float64 [T, B]: over the rows of each row's group whose episode still goes on then.

    Example: two rows of a group, the second over after one chunk step: counts [[2, 2], [1, 1]].
    """
    _, member = torch.unique(group_B, return_inverse=True)
    step_member = member + torch.arange(len(mask_TB), device=member.device)[:, None] * len(group_B)
    total, count = group_sums(returns_TB.flatten(), step_member.flatten(), mask_TB.flatten())
    return total.view_as(returns_TB), count.view_as(returns_TB)


def chunk_step_advantages(
    returns_TB: Tensor, mask_TB: Tensor, group_B: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Return (advantages, the same before normalisation) of chunk steps, both float [T, B].

    They are returns to go relative to the group's at the same time; 0 where no other episode of the group goes on. The
    deviation of a group's chunk steps is normalised to 1. With one number for a whole episode, only failures, which are
    longer than successes, would have late chunk steps, and the mean advantage there would be below 0.
    """
    total, count = group_sums_by_step(returns_TB, mask_TB, group_B)
    centred = torch.where(mask_TB & (count > 1), returns_TB - total / count.clamp(min=1), 0.0)
    square, _ = group_sums(centred.square().sum(0), group_B, mask_TB.any(0))
    size, _ = group_sums(mask_TB.sum(0), group_B, mask_TB.any(0))
    scaled = torch.where(mask_TB, centred / ((square / size.clamp(min=1)).sqrt() + eps), 0.0)
    return scaled.to(returns_TB.dtype), centred.to(returns_TB.dtype)


def balanced(x: Tensor, weights: Tensor, reduce: Reduce = on_one_rank) -> Tensor:
    """Return `x` with its larger side, above or below 0, scaled down so that the weighted mean over all ranks is 0.

    x: float [M]; weights: float64 [M], not negative. 0 stays 0, and no number changes its sign or grows.
    Entries without weight may be anything, and become 0.

    Example: [3, -1, -1], all of weight 1 -> [2, -1, -1].
    """
    kept = torch.where(weights > 0, x.double(), 0.0)
    above, below = reduce(torch.stack([(side * weights).sum() for side in (kept.clamp(min=0), -kept.clamp(max=0))]))
    least = torch.minimum(above, below)
    scale = torch.where(kept > 0, least / above.clamp(min=1e-30), least / below.clamp(min=1e-30))
    return (kept * scale).to(x.dtype)


def group_sums(scores_B: Tensor, group_B: Tensor, valid_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return (sum, count), both float64 [B]: of the valid rows of each row's group.

    In float32, the mean of equal scores may differ from them, and divided by their deviation, which is nearly 0, this
    rounding would be an advantage.

    Example: scores [1, 0, 5], group [7, 7, 8], valid [1, 1, 0] -> ([1, 1, 0], [2, 2, 0]).
    """
    _, member = torch.unique(group_B, return_inverse=True)
    sums = torch.zeros(int(member.max()) + 1, dtype=torch.float64, device=scores_B.device)
    count = sums.index_add(0, member, valid_B.double())
    total = sums.index_add(0, member, torch.where(valid_B, scores_B, 0.0).double())
    return total[member], count[member]


def normalize(x: Tensor, mask: Tensor, reduce: Reduce = on_one_rank, eps: float = 1e-5) -> Tensor:
    """Return (x - mean) / (std + eps), with unbiased statistics over `mask` and all ranks; 0 outside the mask.

    `reduce` sums a tensor over the ranks. With fewer than two valid entries in total only the mean is removed.
    """
    mask = mask.bool()
    kept = torch.where(mask, x, 0.0).double()
    count, total = reduce(torch.stack([mask.sum().double(), kept.sum()]))
    centred = torch.where(mask, kept - total / count.clamp(min=1), 0.0)
    squares = reduce((centred**2).sum().reshape(1))[0]
    if count < 2:
        return centred.to(x.dtype)
    return (centred / ((squares / (count - 1)).sqrt() + eps)).to(x.dtype)
