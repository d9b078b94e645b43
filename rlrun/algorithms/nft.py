"""NFT: negative-aware fine-tuning of a flow policy, without likelihoods (DiffusionNFT, arXiv 2509.16117).

The policy matches velocities on its own actions. An action is good with a probability r, and bad with 1 - r, which its
group says. The velocity v of the policy enters the loss of good actions as v+, that of bad ones as v-, which lie on
opposite sides of the velocity of the policy that acted:

    v+ = (1 - beta) v_acting + beta v        v- = (1 + beta) v_acting - beta v

so that good actions attract it, and bad ones repel it.

Shape legend: M chunk steps, C control steps, F points of the flow, A action dimensions, K = C*F*A choices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.algorithms.advantages import Reduce, balanced, chunk_step_advantages, returns_of_episodes
from rlrun.algorithms.algorithm import (
    Advantages,
    Algorithm,
    ChunkSteps,
    Losses,
    LossTerm,
    MatchedVelocities,
    Outputs,
    Reduction,
    Targets,
)
from rlrun.algorithms.losses import aggregate, combine_losses, masked_mean, reference_penalty
from rlrun.algorithms.spec import NftConfig
from rlrun.config.schema import AlgorithmConfig

MOST_KEPT = 0.5  # share that the acting policy keeps at most in an update, as in the authors' code
LEAST_ERROR = 1e-5  # absolute error by which a squared one is divided at least, as in the authors' code


class Nft(Algorithm):
    """NFT: chunk steps are compared with those of their group at the same time, and the loss is flow matching towards
    good actions and away from bad ones."""

    def __init__(self, config: AlgorithmConfig):
        super().__init__(config)
        self._own = config.section(NftConfig)

    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        ended = steps.terminated | steps.truncated
        parts = (x.split(steps.horizon) for x in (steps.rewards, steps.discount, ended, steps.valid))
        results = []
        for epoch in zip(*parts, strict=True):
            returns, mask = returns_of_episodes(*epoch)
            results.append((*chunk_step_advantages(returns, mask, steps.group), mask))
        advantages, raw, masks = (torch.cat(part) for part in zip(*results, strict=True))
        return Advantages(advantages, masks, raw)

    def acting_share(self, num_steps: int) -> float | None:
        rate = self._own.acting_rate
        return min(rate * num_steps, MOST_KEPT) if rate > 0 else None

    def as_weighed(self, advantages: Tensor, weights: Tensor, reduce: Reduce) -> Tensor:
        """Return the advantages within `advantage_clip`, of weighed mean 0.

        An update changes the error of the policy on its own actions by a factor of about 1 - mean / advantage_clip. So
        any constant below 0, which policy gradients do not mind, makes it grow without bound.
        """
        bound = self._own.advantage_clip
        return balanced(advantages.clamp(-bound, bound), weights, reduce)

    def loss(self, outputs: Outputs, targets: Targets) -> Losses:
        terms = outputs.distribution.flow_matching_terms(targets.tokens)
        if terms is None:
            raise ValueError("the policy matches no velocities, which this algorithm trains")
        positive, negative = branch_losses(terms, targets.token_mask, self._own)
        good = goodness(targets.advantages, self._own.advantage_clip)[:, None]
        # The scale, the authors' too, leaves the gradient at the policy that acted the same for every beta and clip.
        weighed = (good * positive + (1.0 - good) * negative) * (self._own.advantage_clip / self._own.beta)
        mean = aggregate(weighed, targets.token_mask, self.config.aggregation.value, targets.episode_tokens)
        with torch.no_grad():
            drift = 0.5 * (terms.velocity - terms.acting).square().flatten(1)
            own_error = (terms.velocity - terms.target).square().flatten(1)
            metrics = {
                "positive_loss": masked_mean(positive, targets.token_mask),
                "negative_loss": masked_mean(negative, targets.token_mask),
                "own_flow_error": masked_mean(own_error, targets.token_mask),
                "kl_exact": masked_mean(drift, targets.token_mask),
            }
        losses = Losses(
            [LossTerm(mean, Reduction.tokens, name="policy_loss")], {Reduction.tokens: metrics}, metrics["kl_exact"]
        )
        return combine_losses(losses, reference_penalty(self.config, outputs, targets))


def goodness(advantages: Tensor, clip: float) -> Tensor:
    """Return the probability that an action is good, float [M]. Example: [-9, 0, 2.5], clip 5: [0, 0.5, 0.75]."""
    return 0.5 + 0.5 * (advantages / clip).clamp(-1.0, 1.0)


def branch_losses(terms: MatchedVelocities, token_mask: Tensor, settings: NftConfig) -> tuple[Tensor, Tensor]:
    """Return the losses of good and of bad actions, float32 [M, K] each.

    token_mask: bool [M, K]. With adaptive weighting, the squared error of the action that a velocity predicts is
    divided by the mean absolute one of its point, so that no time of the flow outweighs the others.
    """
    mask = token_mask.view_as(terms.velocity)
    velocity, acting, target = (torch.where(mask, x, 0.0) for x in (terms.velocity, terms.acting, terms.target))
    change = settings.beta * (velocity - acting)
    losses = []
    for implicit in (acting + change, acting - change):
        errors = implicit - target
        if settings.adaptive_weighting:
            errors = terms.share[:, None, :, None] * errors
            count = mask.sum((1, 3), keepdim=True).clamp(min=1)
            size = errors.detach().abs().sum((1, 3), keepdim=True) / count
            losses.append((errors.square() / size.clamp(min=LEAST_ERROR)).flatten(1))
        else:
            losses.append(errors.square().flatten(1))
    return losses[0], losses[1]
