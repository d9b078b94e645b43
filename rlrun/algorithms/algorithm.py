"""Interfaces of algorithms: advantages of collected chunk steps, and losses of one forward pass.

Shape legend: T chunk steps, B rows (envs), M chunk steps flat, K choices of a chunk step, U units that get one
probability ratio each (a choice, a control step or the whole chunk, as `algorithm.ratio_level` says).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.advantages import Reduce
from rlrun.config.schema import AlgorithmConfig
from rlrun.edges.trajectories import Trajectory


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
    episode_units: Tensor | None = None  # float32 [M], valid units of the whole episode of each row
    episode_tokens: Tensor | None = None  # float32 [M], valid tokens of the whole episode of each row


@dataclass(frozen=True, eq=False)
class MatchedVelocities:
    """Velocities of a flow policy at F points between the chosen action and noise, for C control steps of A numbers.

    K = C*F*A choices are these numbers, flat in this order.
    """

    velocity: Tensor  # float32 [M, C, F, A], of the present policy
    acting: Tensor  # float32 [M, C, F, A], of the policy that acted
    target: Tensor  # float32 [M, C, F, A], of the straight path through the point
    share: Tensor  # float32 [M, F], of noise in the point


class ActionDistribution(ABC):
    """K choices in each of B rows, at one temperature. `tokens` are the chosen values."""

    has_likelihood = True  # whether `logprobs` are those of the choices as `sample` draws them

    @abstractmethod
    def sample(self, keys: np.ndarray) -> Tensor:
        """Return [B, K]; row b depends on `keys[b]` (uint64) and its own probabilities."""

    @abstractmethod
    def most_likely(self) -> Tensor:
        """Return [B, K]."""

    @abstractmethod
    def logprobs(self, tokens: Tensor) -> Tensor:
        """Return float32 [B, K]: the log-probability (or log-density) of each choice."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return float32 [B, K], in nats."""

    def logprob_variance(self) -> Tensor | None:
        """Return float32 [B, K]: the variance of the log-probability of a choice; None: the drawn ones show it.

        They do not where rare choices decide: a sure policy draws none of them in most batches.
        """
        return None

    def kl_statistic(self, tokens: Tensor) -> Tensor:
        """Return float32 [B, K]: what `exact_kl` needs of a reference policy; by default its log-probabilities."""
        return self.logprobs(tokens)

    def exact_kl(self, reference: Tensor) -> Tensor | None:
        """Return float32 [B, K], KL(this || reference) in closed form; None: it is estimated from log-probabilities.

        reference: the `kl_statistic` of the reference policy for the same tokens.
        """
        return None

    def kl_from_behavior(self, tokens: Tensor) -> Tensor | None:
        """Return float32 [B, K], KL(the policy that chose `tokens` || this) in closed form, from what `tokens` hold;
        None: it is estimated from log-probabilities."""
        return None

    def flow_matching_terms(self, tokens: Tensor) -> MatchedVelocities | None:
        """Return the velocities of the flow matching loss on the chosen actions; None: the policy has none."""
        return None

    @abstractmethod
    def slice_rows(self, num_rows: int) -> ActionDistribution:
        """Return the distribution of rows [0, num_rows)."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """The results of one forward pass over M rows."""

    distribution: ActionDistribution
    logprobs: Tensor  # float32 [M, K], of the chosen actions
    unit_logprobs: Tensor  # float32 [M, U], the same by unit
    values: Tensor | None  # float32 [M]; None: no critic
    acted_logprobs: Tensor | None = None  # float32 [M, U], of the behaviour policy; None: it is the proximal one
    # float32 [M, K], the distribution's `kl_statistic` of the first policy, if algorithm.kl_coef > 0
    reference: Tensor | None = None


class Reduction(Enum):
    """The entries that a loss term is averaged over.

    The learner weights micro-batches by their number, so that every entry counts equally.
    """

    units = "units"
    tokens = "tokens"
    rows = "rows"


@dataclass(frozen=True, eq=False)
class LossTerm:
    """A part of the loss: `coefficient` * `mean`. Example: LossTerm(value_loss, Reduction.rows, 0.5)."""

    mean: Tensor  # scalar, `losses.aggregate`d as algorithm.aggregation says (rows: the mean over the row mask)
    over: Reduction
    coefficient: float = 1.0
    name: str | None = None  # name under which `mean` is logged; None: not logged


@dataclass(frozen=True, eq=False)
class Losses:
    """The parts of the loss of one forward pass, and numbers to log."""

    terms: list[LossTerm]
    metrics: dict[Reduction, dict[str, Tensor]] = field(default_factory=dict)  # scalars: means over the masks
    approx_kl: Tensor | None = None  # scalar: mean KL from the proximal policy, for target_kl


class BaseAlgorithm:
    """Base class: settings, and the state that a resumed run needs. Every actor rank has one instance."""

    def __init__(self, config: AlgorithmConfig):
        self.config = config

    def acting_share(self, num_steps: int) -> float | None:
        """Return the share that the policy which acts keeps of its weights after an update; the rest comes from the
        policy that learns. None: the newest policy acts, and the learner keeps no other weights.

        num_steps: optimizer steps done, counted over resumes.
        """
        return None

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the state that a resumed run needs besides the policy, by name; saved for each rank."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned. A rank that did not exist then gets {}."""


@dataclass(frozen=True, eq=False)
class DemonstratedSteps:
    """Chunk steps of demonstrations with their next observation: M rows, C control steps per chunk, A actions."""

    proprio: np.ndarray  # float32 [M, P]
    actions: np.ndarray  # float32 [M, C, A], simulator units; after the end of an episode its last one repeats
    rewards: Tensor  # float32 [M], of whole chunks
    discount: Tensor  # float32 [M], of the rewards after the chunk
    terminated: Tensor  # bool [M]
    next_proprio: np.ndarray  # float32 [M, P]; any where it terminated


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

    def as_weighed(self, advantages: Tensor, weights: Tensor, reduce: Reduce) -> Tensor:
        """Return the advantages that the loss takes, float32 [M], of those of all chunk steps, after clipping.

        weights: float64 [M], of each chunk step in the loss's mean; 0: it does not count. A collective.
        """
        return advantages

    def trains_policy(self, num_updates: int) -> bool:
        """Return whether the update after `num_updates` others trains the whole policy; False: its value head only."""
        return True


@dataclass(eq=False)
class UpdateContext:
    """The learner of an actor rank in one training step, as off-policy algorithms use it.

    All ranks call its functions together.
    """

    policy: Any  # rlrun.policies.policy.Policy; its passes read weights that may be sharded over the ranks
    device: torch.device
    num_updates: int  # training steps done, counted over resumes
    random: torch.Generator  # on the CPU, of this rank and training step
    world_size: int
    # Takes one optimizer step of the policy along the gradients of a scalar, which are averaged over the ranks. Returns
    # False if a gradient was not finite and the step was left out.
    step: Callable[[Tensor], bool]
    sum: Callable[[Tensor], Tensor]  # sums a small tensor over all ranks
    any: Callable[[bool], bool]  # returns True on every rank if it is true on any


class OffPolicyAlgorithm(BaseAlgorithm, ABC):
    """An off-policy algorithm: it keeps a replay buffer, and takes any number of gradient steps per training step.

    Networks of its own, such as critics, are its own: it trains them, averages their gradients over the ranks, and
    returns them by `state_dict`. Only the policy goes to rollout workers and into policy folders.

    Example: `rlrun.algorithms.dsrl.Dsrl`.
    """

    def take_demonstrations(self, shown: DemonstratedSteps, policy: Any) -> None:
        """Take the demonstrations, on every rank and before the first update, if the spec `needs_demonstrations`.

        policy: rlrun.policies.policy.Policy. Called in a resumed run, too: the state need not hold them.
        """
        raise NotImplementedError(f"{type(self).__name__} learns from no demonstrations")

    @abstractmethod
    def update(self, steps: ChunkSteps, trajectory: Trajectory, context: UpdateContext) -> dict[str, float]:
        """Learn after a training step, whose chunk steps are new. A collective. Returns metrics, equal on all ranks."""
