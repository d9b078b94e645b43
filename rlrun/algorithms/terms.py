"""Parts of a loss that several algorithms share, from one forward pass and its targets."""

from __future__ import annotations

import torch

from rlrun.algorithms.algorithm import Losses, LossTerm, Outputs, Over, Targets
from rlrun.algorithms.losses import (
    aggregate,
    aligned,
    behavior_weights,
    kl_penalty,
    masked_mean,
    ppo_policy_loss,
    value_loss,
)
from rlrun.algorithms.settings import PPOConfig
from rlrun.config.schema import AlgorithmConfig


def clipped_surrogate(config: AlgorithmConfig, outputs: Outputs, targets: Targets) -> Losses:
    """Return PPO's policy loss. For chunk steps of an older policy, advantages are weighted as in decoupled PPO."""
    mask, advantages, metrics = targets.unit_mask, targets.advantages, {}
    if outputs.acted_logprobs is not None and config.behavior_weight_cap is not None:
        weights = behavior_weights(targets.proximal_logprobs, outputs.acted_logprobs, mask, config.behavior_weight_cap)
        advantages = aligned(advantages, weights) * weights
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
    )
    terms = [LossTerm(loss, Over.units, name="policy_loss")]
    return Losses(terms, {Over.units: metrics | health}, moved=health["kl_k3"])


def entropy_bonus(config: AlgorithmConfig, outputs: Outputs, targets: Targets) -> Losses:
    """Return minus the entropy of every choice; with algorithm.entropy_coef=0 it is only logged."""
    with torch.set_grad_enabled(config.entropy_coef != 0 and torch.is_grad_enabled()):
        entropy = outputs.distribution.entropy()
    metrics = {Over.tokens: {"entropy": masked_mean(entropy.detach(), targets.token_mask)}}
    if config.entropy_coef == 0:
        return Losses([], metrics)
    bonus = aggregate(entropy, targets.token_mask, config.aggregation.value)
    return Losses([LossTerm(bonus, Over.tokens, -config.entropy_coef)], metrics)


def reference_penalty(config: AlgorithmConfig, outputs: Outputs, targets: Targets) -> Losses:
    """Return the KL from the first policy; nothing with algorithm.kl_coef=0."""
    if outputs.reference_logprobs is None:
        return Losses([])
    penalty = kl_penalty(outputs.logprobs, outputs.reference_logprobs, config.kl_kind.value)
    cost = aggregate(penalty, targets.token_mask, config.aggregation.value)
    metrics = {Over.tokens: {"kl_reference": masked_mean(penalty.detach(), targets.token_mask)}}
    return Losses([LossTerm(cost, Over.tokens, config.kl_coef)], metrics)


def value_error(config: PPOConfig, outputs: Outputs, targets: Targets) -> Losses:
    """Return the critic's loss. Raises ValueError for a policy without a critic."""
    if outputs.values is None:
        raise ValueError("the policy has no value head, which this algorithm trains")
    loss, metrics = value_loss(
        outputs.values, targets.old_values, targets.returns, targets.row_mask, config.value_clip, config.huber_delta
    )
    return Losses([LossTerm(loss, Over.rows, config.value_coef, "value_loss")], {Over.rows: metrics})


def joined(*parts: Losses) -> Losses:
    """Return the parts of several losses as one; `moved` is that of the first."""
    metrics: dict[Over, dict] = {}
    for part in parts:
        for over, numbers in part.metrics.items():
            metrics.setdefault(over, {}).update(numbers)
    return Losses([term for part in parts for term in part.terms], metrics, parts[0].moved)
