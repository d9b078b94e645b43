"""The interface of every algorithm: advantages of what was collected, and losses of one forward pass.

Shape legend: T chunk steps, B rows (envs), M chunk steps flat, K choices of a chunk step, U units that get one
probability ratio each (a choice, a control step or the whole chunk, as `algorithm.ratio_level` says).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from rlrun.algorithms.advantages import Reduce
from rlrun.config.schema import AlgorithmConfig
from rlrun.data.messages import Trajectory


@dataclass(frozen=True, eq=False)
class ChunkSteps:
    """What one actor rank collected in a training step, as far as advantages depend on it."""

    rewards: Tensor  # float32 [T, B], of whole chunks
    discount: Tensor  # float32 [T, B], of what follows the chunk
    values: Tensor  # float32 [T, B]
    next_values: Tensor  # float32 [T, B], of the true next observation
    terminated: Tensor  # bool [T, B]
    truncated: Tensor  # bool [T, B]
    goes_on: Tensor  # bool [T, B]; the chunk step that follows is valid and of the same episode
    valid: Tensor  # bool [T, B]; False: infra fault, or no episode was running
    group: Tensor  # int32 [B]; rows of one group share their reset seed
    horizon: int  # chunk steps of one rollout epoch; T is a multiple of it


@dataclass(frozen=True, eq=False)
class Advantages:
    """One number per chunk step, each [T, B]."""

    advantages: Tensor  # float32, 0 outside the mask
    mask: Tensor  # bool; the chunk steps that are learned from
    raw: Tensor  # float32, before normalisation; only logged
    returns: Tensor | None = None  # float32, what values are trained towards; None: there is no critic


@dataclass(frozen=True, eq=False)
class Targets:
    """What the losses compare a forward pass with, M rows."""

    tokens: Tensor  # uint8 or float32 [M, ...]: what was chosen
    token_mask: Tensor  # bool [M, K]; choices for control steps that were not executed are False
    unit_mask: Tensor  # bool [M, U]
    proximal_logprobs: Tensor  # float32 [M, U], of the policy that ratios are taken against
    advantages: Tensor  # float32 [M]
    old_values: Tensor  # float32 [M]
    returns: Tensor  # float32 [M]
    row_mask: Tensor  # bool [M]

    def masked(self) -> Targets:
        """The same rows, none of which counts."""
        masks = {name: torch.zeros_like(getattr(self, name)) for name in ("token_mask", "unit_mask", "row_mask")}
        return replace(self, **masks)


class Choices(Protocol):
    """What a policy may choose in M rows; `rlrun.policies.distributions` has more of it."""

    def logprobs(self, tokens: Tensor) -> Tensor:
        """float32 [M, K]."""

    def entropy(self) -> Tensor:
        """float32 [M, K], in nats."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """One forward pass over M rows."""

    distribution: Choices
    logprobs: Tensor  # float32 [M, K], of what was chosen
    unit_logprobs: Tensor  # float32 [M, U], the same by unit
    values: Tensor | None  # float32 [M]; None: no critic
    acted_logprobs: Tensor | None = None  # float32 [M, U], of the policy that acted, where it is older than proximal
    reference_logprobs: Tensor | None = None  # float32 [M, K], of the first policy, under algorithm.kl_coef > 0


class Over(Enum):
    """What a mean divides by; the learner weighs micro-batches by it, so that every entry counts alike."""

    units = "units"
    tokens = "tokens"
    rows = "rows"


@dataclass(frozen=True, eq=False)
class LossTerm:
    """A part of the loss: `coefficient` * `mean`. Example: LossTerm(value_loss, Over.rows, 0.5)."""

    mean: Tensor  # scalar, `losses.aggregate`d as algorithm.aggregation says (rows: the mean over the row mask)
    over: Over
    coefficient: float = 1.0
    name: str | None = None  # under which `mean` is logged; None: it is not


@dataclass(frozen=True, eq=False)
class Losses:
    """The parts of the loss of one forward pass, and numbers to log."""

    terms: list[LossTerm]
    metrics: dict[Over, dict[str, Tensor]] = field(default_factory=dict)  # scalars: means over the masks
    moved: Tensor | None = None  # scalar: mean KL from the policy that ratios are taken against, for target_kl


class Algorithm(ABC):
    """What is learned from chunk steps, and how. Every actor rank holds one.

    The learner calls, once per training step, `advantages`; then, for every micro-batch of every epoch, `loss`. It
    takes care of the rest: minibatches, micro-batches of unequal size, ranks, gradients, decoupled ratios of old data,
    the copy of the first policy and `algorithm.target_kl`.

    An off-policy method also learns from earlier training steps. It overrides `learned_from`, which may keep
    trajectories in a replay buffer and return several samples of it: one update is made of each. Its `loss` ignores
    old log-probabilities, and reads next observations in the following chunk step of the same row. What it has to
    remember goes into `state_dict`. Networks of its own (target critics) belong into the policy's module, so that they
    are sharded, saved and resumed.

    Example: `rlrun.algorithms.ppo.PPO`.
    """

    def __init__(self, config: AlgorithmConfig):
        self.config = config

    @abstractmethod
    def advantages(self, steps: ChunkSteps, reduce: Reduce) -> Advantages:
        """Advantages, returns and mask. A collective: `reduce` sums a small tensor over all ranks."""

    @abstractmethod
    def loss(self, outputs: Outputs, targets: Targets) -> Losses:
        """Of one forward pass. Masked entries may hold anything, even NaN, and touch neither loss nor gradient."""

    def trains_policy(self, num_updates: int) -> bool:
        """Whether the update after `num_updates` others trains the whole policy; False: its value head only."""
        return True

    def learned_from(self, trajectory: Trajectory) -> Iterable[Trajectory]:
        """The trajectories of which one update each is made: the new one, unless the method keeps others."""
        return (trajectory,)

    def state_dict(self) -> Mapping[str, Tensor]:
        """What a resumed run needs besides the policy, by name; saved for each rank."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027  most remember nothing
        """Take what `state_dict` gave."""
