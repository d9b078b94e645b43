"""Losses of PPO, GRPO and imitation, and metrics of the health of an update.

Shape legend: M chunk steps, C control steps per chunk, A action dimensions, K = C*A tokens.
Masks are bool or 0 and 1, with the shape of the tensor that they mask, or its leading dimensions. They are broadcast
before entries are counted. Masked entries may be anything, even NaN, and affect neither a loss nor a gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rlrun.algorithms.advantages import Reduce, on_one_rank
from rlrun.algorithms.algorithm import Losses, LossTerm, Outputs, Reduction, Targets
from rlrun.algorithms.spec import PPOConfig
from rlrun.config.schema import Aggregation, AlgorithmConfig

AGGREGATIONS = tuple(entry.value for entry in Aggregation)
RATIO_LEVELS = ("token", "action", "chunk")
MAX_LOG_RATIO = 20.0  # exp(20) is still finite in float32; only broken inputs come near
MAX_KL = 10.0  # bound of the k3 estimate, so that the exponential of one token does not dominate the mean


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    """Return `x` expanded to the shape of `like`, whose leading dimensions it has.

    Example: a mask [M] or [M, 1] for logprobs [M, K] becomes [M, K].
    """
    if x.shape == like.shape:
        return x
    return x.reshape(*x.shape, *(1,) * (like.ndim - x.ndim)).expand(like.shape)


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """Return `x` where the mask is true, 0 elsewhere. By selection, not multiplication, since 0 times NaN is NaN."""
    return torch.where(broadcast_to(mask, x).bool(), x, 0.0)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the mask; 0 if nothing is valid."""
    return masked(x, mask).sum() / broadcast_to(mask, x).bool().sum().clamp(min=1)


def aggregate(x: Tensor, mask: Tensor, aggregation: str, episode_size: Tensor | None = None) -> Tensor:
    """Return a scalar from per-token numbers [M, ...]; chunk steps without a valid token are not part of the mean.

    token-mean: mean over all valid tokens. chunk-mean-token-sum: sum per chunk step, mean over chunk steps.
    chunk-mean-token-mean: mean per chunk step, mean over chunk steps. episode-mean-token-mean: mean per episode, mean
    over episodes; an episode of which x has a part counts as that part of one. Raises ValueError for other names.

    episode_size: float [M], the valid tokens of the whole episode of each chunk step; only for a mean over episodes.
    """
    if aggregation == "token-mean":
        return masked_mean(x, mask)
    mask = broadcast_to(mask, x).bool().flatten(1)
    count = aggregation_counts(mask, aggregation, episode_size).sum()
    sums = masked(x.flatten(1), mask).sum(-1)
    if aggregation == "chunk-mean-token-mean":
        sums = sums / mask.sum(-1).clamp(min=1)
    elif aggregation == "episode-mean-token-mean":
        sums = sums / _require_sizes(episode_size).clamp(min=1)
    return sums.sum() / torch.where(count > 0, count, 1)


def aggregation_counts(mask: Tensor, aggregation: str, episode_size: Tensor | None = None) -> Tensor:
    """Return the weight of each chunk step in the divisor of `aggregate`.

    token-mean: its valid tokens. episode-mean-token-mean: its share of the valid tokens of its episode. Others: 1 if
    it has a valid token. With their sums as weights, micro-batches of unequal size add up to the aggregate of the
    whole batch.

    mask: bool [M, ...]; episode_size: see `aggregate`. Returns integers [M], or floats for a mean over episodes.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation={aggregation!r} is unknown; choose one of {', '.join(AGGREGATIONS)}")
    valid = mask.reshape(mask.shape[0], -1).sum(-1)
    if aggregation == "token-mean":
        return valid
    if aggregation == "episode-mean-token-mean":
        return valid / _require_sizes(episode_size).clamp(min=1)
    return (valid > 0).long()


def _require_sizes(episode_size: Tensor | None) -> Tensor:
    if episode_size is None:
        raise ValueError("a mean over episodes needs their sizes: targets.episode_units or targets.episode_tokens")
    return episode_size


def aggregation_weights(mask: Tensor, aggregation: str, episode_size: Tensor | None = None) -> Tensor:
    """Return the weight in `aggregate` of a number that all tokens of a chunk step share, float64 [M], up to a factor.

    Arguments as of `aggregation_counts`. Example: two chunk steps with 1 and 3 valid tokens: [1, 3]; with
    chunk-mean-token-mean [1, 1].
    """
    if aggregation == "chunk-mean-token-sum":
        return mask.reshape(mask.shape[0], -1).sum(-1).double()
    return aggregation_counts(mask, aggregation, episode_size).double()


def aggregate_logprobs(
    logprobs_MK: Tensor, mask_MK: Tensor, level: str, num_action_chunks: int
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and mask of the units that have one ratio each.

    token: [M, K]; action: [M, C], the sum over the A tokens of a control step; chunk: [M, 1], the sum
    over the valid tokens. Raises ValueError for other levels.
    """
    if level == "token":
        return logprobs_MK, mask_MK
    if level not in RATIO_LEVELS:
        raise ValueError(f"ratio_level={level!r} is unknown; choose one of {', '.join(RATIO_LEVELS)}")
    units = num_action_chunks if level == "action" else 1
    logprobs = logprobs_MK.reshape(logprobs_MK.shape[0], units, -1)
    mask = mask_MK.reshape(logprobs.shape)
    return masked(logprobs, mask).sum(-1), mask.any(-1)


def ppo_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float,
    aggregation: str,
    episode_size: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (loss, metrics): the clipped surrogate with an asymmetric clip and a dual clip.

    logprobs, old_logprobs: float [M, ...]. advantages, mask: the same shape or its leading dimensions
    ([M], [M, 1]). episode_size: see `aggregate`. For negative advantages the loss is bounded by
    -clip_ratio_c * advantage, so that a token that has become very likely does not dominate.

    Metrics are means over valid tokens, whatever the aggregation: approx_kl (mean of old - new), kl_k3
    (never negative, less noisy), clip_fraction, dual_clip_fraction, ratio. Raises ValueError for a
    clip_ratio_c of 1 or less.
    """
    if clip_ratio_c <= 1.0:
        raise ValueError(f"clip_ratio_c={clip_ratio_c} must exceed 1: it bounds the ratio for negative advantages")
    advantages = masked(broadcast_to(advantages, logprobs), mask)
    log_ratio = masked(logprobs - old_logprobs, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    worst = torch.maximum(unclipped, clipped)
    bound = -advantages * clip_ratio_c
    losses = torch.where(advantages < 0, torch.minimum(worst, bound), worst)
    metrics = {
        "approx_kl": -log_ratio,
        "kl_k3": ratio - 1.0 - log_ratio,
        "clip_fraction": (clipped > unclipped).float(),
        "dual_clip_fraction": ((advantages < 0) & (worst > bound)).float(),
        "ratio": ratio,
    }
    loss = aggregate(losses, mask, aggregation, episode_size)
    return loss, {name: masked_mean(x.detach(), mask) for name, x in metrics.items()}


def behavior_weights(proximal_logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Return the ratio of each unit's probability at the start of the update to that of the behaviour policy.

    The ratio is at most `cap`, and 1 where masked; all tensors have one shape. With advantages multiplied by it, and
    ratios to the policy at the start of the update, PPO becomes decoupled PPO (Hilton, Cobbe and Schulman, 2022, "Batch
    size-invariance for policy optimization").
    """
    log_weight = torch.where(mask, proximal_logprobs - old_logprobs, 0.0)
    return log_weight.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    value_clip: float,
    huber_delta: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (loss, metrics): Huber loss of the values, or of the clipped values old_values +- value_clip if larger.

    All [M] (or any one shape). Metrics, over valid entries: value_clip_fraction (how often the value moved beyond the
    clip), value_error (mean absolute).
    """
    values, old_values, returns = (masked(broadcast_to(x, values), mask) for x in (values, old_values, returns))
    moved = values - old_values
    clipped = old_values + moved.clamp(-value_clip, value_clip)
    losses = (F.huber_loss(x, returns, reduction="none", delta=huber_delta) for x in (values, clipped))
    loss = masked_mean(torch.maximum(*losses), mask)
    metrics = {"value_clip_fraction": (moved.abs() > value_clip).float(), "value_error": (returns - values).abs()}
    return loss, {name: masked_mean(x.detach(), mask) for name, x in metrics.items()}


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    """Return a per-token estimate of KL(policy || reference) from sampled tokens, with the shape of `logprobs`.

    k1: log-ratio (unbiased, may be negative). abs: its absolute value. k2, mse: half its square.
    k3, low_var_kl: exp(-x) - 1 + x (never negative), bounded. Raises ValueError for other kinds.
    """
    log_ratio = logprobs - ref_logprobs
    if kind == "k1":
        return log_ratio
    if kind == "abs":
        return log_ratio.abs()
    if kind in ("k2", "mse"):
        return 0.5 * log_ratio.square()
    if kind in ("k3", "low_var_kl"):
        towards_ref = (-log_ratio).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return (towards_ref.exp() - 1.0 - towards_ref).clamp(-MAX_KL, MAX_KL)
    raise ValueError(f"kl_kind={kind!r} is unknown; choose one of k1, k2, k3, abs, mse, low_var_kl")


def imitation_loss(
    logits: Tensor, tokens: Tensor, mask: Tensor, label_smoothing_bins: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (loss, metrics): the cross-entropy of demonstrated action bins.

    logits: float [M, K, bins]; tokens: integers [M, K]; mask: [M, K] or leading dimensions.
    label_smoothing_bins: standard deviation, in bins, of a Gaussian target around the demonstrated
    bin (bins are ordered, so a near miss is nearly right); 0: one bin is right, all others wrong.
    Metrics: token_accuracy, bin_error (mean distance of the likeliest bin).
    """
    tokens = tokens.long()
    log_probs = logits.float().log_softmax(-1)
    if label_smoothing_bins > 0:
        bins = torch.arange(logits.shape[-1], device=logits.device)
        distance = (bins - tokens.unsqueeze(-1)) / label_smoothing_bins
        cross_entropy = -((-0.5 * distance.square()).softmax(-1) * log_probs).sum(-1)
    else:
        cross_entropy = -log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        miss = (logits.argmax(-1) - tokens).abs()
        metrics = {
            "token_accuracy": masked_mean((miss == 0).float(), mask),
            "bin_error": masked_mean(miss.float(), mask),
        }
    return masked_mean(cross_entropy, mask), metrics


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor, reduce: Reduce = on_one_rank) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns) over the mask and all ranks; 0 if returns do not vary.

    1: values predict returns perfectly; 0: no better than a constant; negative: worse.
    """
    mask = mask.bool()
    kept = torch.stack([torch.where(mask, x, 0.0).double() for x in (returns, returns - values)])
    sums = reduce(torch.cat([mask.sum().double().reshape(1), kept.flatten(1).sum(-1)]))
    means = sums[1:] / sums[0].clamp(min=1)
    centred = torch.where(mask, kept - means.reshape(2, *(1,) * mask.ndim), 0.0)
    returns_squares, error_squares = reduce(centred.square().flatten(1).sum(-1))
    explained = 1.0 - error_squares / returns_squares.clamp(min=1e-30)
    return torch.where(returns_squares > 1e-12 * sums[0], explained, 0.0)


# --- terms of the loss of one forward pass, as algorithms combine them -------------------------


def clipped_surrogate(config: AlgorithmConfig, outputs: Outputs, targets: Targets) -> Losses:
    """Return PPO's policy loss. For chunk steps of an older policy, advantages are weighted as in decoupled PPO."""
    mask = targets.unit_mask
    advantages = targets.advantages
    metrics = {}
    if outputs.acted_logprobs is not None and config.behavior_weight_cap is not None:
        weights = behavior_weights(targets.proximal_logprobs, outputs.acted_logprobs, mask, config.behavior_weight_cap)
        advantages = broadcast_to(advantages, weights) * weights
        metrics["behavior_weight"] = masked_mean(weights, mask)
    loss, health = ppo_policy_loss(
        outputs.unit_logprobs,
        targets.proximal_logprobs,
        advantages,
        mask,
        config.clip_ratio_low,
        config.clip_ratio_high,
        config.clip_ratio_c,
        config.aggregation.value,
        targets.episode_units,
    )
    terms = [LossTerm(loss, Reduction.units, name="policy_loss")]
    exact = None if outputs.acted_logprobs is not None else _exact_kl(outputs, targets)
    metrics |= {} if exact is None else {"kl_exact": exact}
    approx_kl = health["kl_k3"] if exact is None else exact
    return Losses(terms, {Reduction.units: metrics | health}, approx_kl)


def _exact_kl(outputs: Outputs, targets: Targets) -> Tensor | None:
    """Return the mean over units of the KL from the policy that acted, in closed form; None: there is none."""
    with torch.no_grad():
        kl = outputs.distribution.kl_from_behavior(targets.tokens)
    if kl is None:
        return None
    total = torch.where(targets.token_mask, kl, 0.0).sum()
    return total / targets.unit_mask.sum().clamp(min=1)


def entropy_bonus(config: AlgorithmConfig, outputs: Outputs, targets: Targets) -> Losses:
    """Return minus the entropy of every choice; with algorithm.entropy_coef=0 it is only logged."""
    with torch.set_grad_enabled(config.entropy_coef != 0 and torch.is_grad_enabled()):
        entropy = outputs.distribution.entropy()
    metrics = {Reduction.tokens: {"entropy": masked_mean(entropy.detach(), targets.token_mask)}}
    if config.entropy_coef == 0:
        return Losses([], metrics)
    bonus = aggregate(entropy, targets.token_mask, config.aggregation.value, targets.episode_tokens)
    return Losses([LossTerm(bonus, Reduction.tokens, -config.entropy_coef)], metrics)


def reference_penalty(config: AlgorithmConfig, outputs: Outputs, targets: Targets) -> Losses:
    """Return the KL from the first policy, in closed form if there is one; nothing with algorithm.kl_coef=0."""
    if outputs.reference is None:
        return Losses([])
    penalty = outputs.distribution.exact_kl(outputs.reference)
    if penalty is None:
        penalty = kl_penalty(outputs.logprobs, outputs.reference, config.kl_kind.value)
    cost = aggregate(penalty, targets.token_mask, config.aggregation.value, targets.episode_tokens)
    metrics = {Reduction.tokens: {"kl_reference": masked_mean(penalty.detach(), targets.token_mask)}}
    return Losses([LossTerm(cost, Reduction.tokens, config.kl_coef)], metrics)


def value_error(config: PPOConfig, outputs: Outputs, targets: Targets) -> Losses:
    """Return the critic's loss. Raises ValueError for a policy without a critic."""
    if outputs.values is None:
        raise ValueError("the policy has no value head, which this algorithm trains")
    loss, metrics = value_loss(
        outputs.values, targets.old_values, targets.returns, targets.row_mask, config.value_clip, config.huber_delta
    )
    return Losses([LossTerm(loss, Reduction.rows, config.value_coef, "value_loss")], {Reduction.rows: metrics})


def combine_losses(*parts: Losses) -> Losses:
    """Return the parts of several losses as one; `approx_kl` is that of the first."""
    metrics: dict[Reduction, dict] = {}
    for part in parts:
        for over, numbers in part.metrics.items():
            metrics.setdefault(over, {}).update(numbers)
    return Losses([term for part in parts for term in part.terms], metrics, parts[0].approx_kl)
