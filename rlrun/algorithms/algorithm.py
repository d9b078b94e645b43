"""The interface of every algorithm: advantages of collected chunk steps, and losses of one forward pass.

Shape legend: T chunk steps, B rows (envs), M chunk steps flat, K choices of a chunk step, U units that get one
probability ratio each (a choice, a control step or the whole chunk, as `algorithm.ratio_level` says).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor

from rlrun.algorithms.advantages import Reduce
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
from rlrun.data.messages import Trajectory


@dataclass(frozen=True, eq=False)
class ChunkSteps:
    """The chunk steps of one actor rank in a training step, with the inputs of advantages."""

    rewards: Tensor  # float32 [T, B], of whole chunks
    discount: Tensor  # float32 [T, B], of the rewards after the chunk
    values: Tensor  # float32 [T, B]
    next_values: Tensor  # float32 [T, B], of the true next observation
    terminated: Tensor  # bool [T, B]
    truncated: Tensor  # bool [T, B]
    goes_on: Tensor  # bool [T, B]; the next chunk step is valid and of the same episode
    valid: Tensor  # bool [T, B]; False: infra fault, or no episode was running
    group: Tensor  # int32 [B]; rows of one group share their reset seed
    horizon: int  # chunk steps of one rollout epoch; T is a multiple of it


@dataclass(frozen=True, eq=False)
class Advantages:
    """One number per chunk step, each [T, B]."""

    advantages: Tensor  # float32, 0 outside the mask
    mask: Tensor  # bool; the chunk steps to learn from
    raw: Tensor  # float32, before normalisation; only logged
    returns: Tensor | None = None  # float32, targets of the values; None: no critic


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets of the losses for one forward pass, M rows."""

    tokens: Tensor  # uint8 or float32 [M, ...]: the chosen actions
    token_mask: Tensor  # bool [M, K]; False for choices of control steps that were not executed
    unit_mask: Tensor  # bool [M, U]
    proximal_logprobs: Tensor  # float32 [M, U], of the policy in the ratios' denominators
    advantages: Tensor  # float32 [M]
    old_values: Tensor  # float32 [M]
    returns: Tensor  # float32 [M]
    row_mask: Tensor  # bool [M]

    def masked(self) -> Targets:
        """Return the same rows with all masks False."""
        masks = {name: torch.zeros_like(getattr(self, name)) for name in ("token_mask", "unit_mask", "row_mask")}
        return replace(self, **masks)


class Choices(Protocol):
    """The action distribution of M rows, as far as losses use it; see `rlrun.policies.distributions`."""

    def logprobs(self, tokens: Tensor) -> Tensor:
        """Return float32 [M, K]."""

    def entropy(self) -> Tensor:
        """Return float32 [M, K], in nats."""

    def exact_kl(self, reference: Tensor) -> Tensor | None:
        """Return float32 [M, K], the KL from the reference policy in closed form; None: there is none."""

    def kl_from_behavior(self, tokens: Tensor) -> Tensor | None:
        """Return float32 [M, K], the KL from the policy that chose `tokens` in closed form; None: there is none."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """The results of one forward pass over M rows."""

    distribution: Choices
    logprobs: Tensor  # float32 [M, K], of the chosen actions
    unit_logprobs: Tensor  # float32 [M, U], the same by unit
    values: Tensor | None  # float32 [M]; None: no critic
    acted_logprobs: Tensor | None = None  # float32 [M, U], of the behaviour policy; None: it is the proximal one
    # float32 [M, K], the distribution's `statistic` of the first policy, if algorithm.kl_coef > 0
    reference: Tensor | None = None


class Over(Enum):
    """The entries of a mean. The learner weights micro-batches by their number, so that every entry counts equally."""

    units = "units"
    tokens = "tokens"
    rows = "rows"


@dataclass(frozen=True, eq=False)
class LossTerm:
    """A part of the loss: `coefficient` * `mean`. Example: LossTerm(value_loss, Over.rows, 0.5)."""

    mean: Tensor  # scalar, `losses.aggregate`d as algorithm.aggregation says (rows: the mean over the row mask)
    over: Over
    coefficient: float = 1.0
    name: str | None = None  # name under which `mean` is logged; None: not logged


@dataclass(frozen=True, eq=False)
class Losses:
    """The parts of the loss of one forward pass, and numbers to log."""

    terms: list[LossTerm]
    metrics: dict[Over, dict[str, Tensor]] = field(default_factory=dict)  # scalars: means over the masks
    moved: Tensor | None = None  # scalar: mean KL from the proximal policy, for target_kl


class BaseAlgorithm:
    """What all algorithms have: their settings, and what a resumed run needs. Every actor rank has one instance."""

    def __init__(self, config: AlgorithmConfig):
        self.config = config

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the state that a resumed run needs besides the policy, by name; saved for each rank."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned. A rank that did not exist then gets {}."""


class Algorithm(BaseAlgorithm, ABC):
    """An on-policy algorithm: its advantages and its losses.

    The learner calls `advantages` once per training step, and then `loss` for every micro-batch of every epoch. It
    handles the rest: minibatches, micro-batches of unequal size, ranks, gradients, decoupled ratios of old data, the
    copy of the first policy and `algorithm.target_kl`.

    Example: `rlrun.algorithms.ppo.PPO`.
    """

    @abstractmethod
    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        """Return advantages, returns and mask. A collective: `reduce` sums a small tensor over all ranks."""

    @abstractmethod
    def loss(self, outputs: Outputs, targets: Targets) -> Losses:
        """Return the losses of one forward pass. Masked entries may be NaN, and must not affect loss or gradient."""

    def trains_policy(self, num_updates: int) -> bool:
        """Return whether the update after `num_updates` others trains the whole policy; False: its value head only."""
        return True


class Learning(Protocol):
    """The learner of an actor rank, as far as off-policy algorithms use it. All ranks call its methods together."""

    policy: Any  # rlrun.policies.policy.Policy; its passes read weights that may be sharded over the ranks
    device: torch.device
    num_updates: int  # training steps done, counted over resumes
    random: torch.Generator  # on the CPU, of this rank and training step
    world_size: int

    def step(self, loss: Tensor) -> bool:
        """Take one optimizer step of the policy along the gradients of a scalar, which are averaged over the ranks.
        Returns False if a gradient was not finite and the step was left out."""

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of a small tensor over all ranks."""

    def any(self, flag: bool) -> bool:
        """Return True on every rank if it is true on any."""


class OffPolicyAlgorithm(BaseAlgorithm, ABC):
    """An algorithm that learns from what it keeps of earlier training steps, in as many steps as it likes.

    Networks of its own, such as critics, are its own: it trains them, averages their gradients over the ranks, and
    returns them by `state_dict`. Only the policy goes to rollout workers and into policy folders.

    Example: `rlrun.algorithms.dsrl.Dsrl`.
    """

    @abstractmethod
    def update(self, steps: ChunkSteps, trajectory: Trajectory, learning: Learning) -> dict[str, float]:
        """Learn after a training step, whose chunk steps are new. A collective. Returns metrics, equal on all ranks."""


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
    exact = None if outputs.acted_logprobs is not None else _exact_kl(outputs, targets)
    metrics |= {} if exact is None else {"kl_exact": exact}
    moved = health["kl_k3"] if exact is None else exact
    return Losses(terms, {Over.units: metrics | health}, moved=moved)


def _exact_kl(outputs: Outputs, targets: Targets) -> Tensor | None:
    """Return the mean over units of the KL from the policy that acted, in closed form; None: there is none."""
    with torch.no_grad():
        moved = outputs.distribution.kl_from_behavior(targets.tokens)
    if moved is None:
        return None
    total = torch.where(targets.token_mask, moved, 0.0).sum()
    return total / targets.unit_mask.sum().clamp(min=1)


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
    """Return the KL from the first policy, in closed form if there is one; nothing with algorithm.kl_coef=0."""
    if outputs.reference is None:
        return Losses([])
    penalty = outputs.distribution.exact_kl(outputs.reference)
    if penalty is None:
        penalty = kl_penalty(outputs.logprobs, outputs.reference, config.kl_kind.value)
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
