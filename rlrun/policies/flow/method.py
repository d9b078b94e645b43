"""How a flow policy draws actions, and how its choices are judged: the interface of Flow-SDE, Flow-Noise and DSRL.

Shape legend: B rows, F points of the flow, S control steps and D dimensions of the network's own chunk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rlrun.policies import sampling
from rlrun.policies.distributions import ActionDistribution
from rlrun.policies.flow.model import Answer, Point
from rlrun.policies.flow.settings import FirstNoise

# of (x [B, S, D], time [B], number of first rows B): the velocity, and the deviation of learned noise if there is one
Field = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class ChunkShape:
    """The network's own chunk, and the part of it that is executed: K = C*A numbers."""

    num_steps: int  # S
    num_dims: int  # D
    num_executed: int  # C
    num_actions: int  # A

    def executed(self, x: Tensor) -> Tensor:
        """Return [..., K] of [..., S, D]."""
        return x[..., : self.num_executed, : self.num_actions].flatten(-2)

    def first_noise(self, kind: FirstNoise, drawn: Tensor) -> Tensor:
        """Return where the flow begins, float32 [B, S, D]. drawn: normal numbers, float32 [B, S*D]."""
        if kind is FirstNoise.fixed:
            return self.fixed_noise(len(drawn))
        return drawn.unflatten(1, (self.num_steps, self.num_dims))

    def fixed_noise(self, num_rows: int) -> Tensor:
        """Return the same standard normal numbers for every row, float32 [B, S, D]: a first noise to act without
        randomness. Zero would not do: the mean of the noise is far from any that a network has seen."""
        numbers = sampling.normals(np.zeros(1, np.uint64), self.num_steps * self.num_dims).float()
        return numbers.view(1, self.num_steps, self.num_dims).repeat(num_rows, 1, 1)

    def replaced(self, x: Tensor, executed: Tensor) -> Tensor:
        """Return x [B, S, D] with its executed part replaced by [B, K]."""
        changed = x.clone()
        changed[:, : self.num_executed, : self.num_actions] = executed.unflatten(1, (-1, self.num_actions))
        return changed


class FlowMethod(ABC):
    """One way to make a stochastic policy of a velocity."""

    @abstractmethod
    def sampler(self, shape: ChunkShape, answer: Answer, field: Field, temperature: float) -> ActionDistribution:
        """Return the distribution that draws choices for the rows of `answer`. temperature: a factor of all noise."""

    @abstractmethod
    def point(self, shape: ChunkShape, tokens: Tensor) -> Point | None:
        """Return where the network must be evaluated to judge choices; None: nowhere."""

    @abstractmethod
    def judged(self, shape: ChunkShape, tokens: Tensor, answer: Answer, temperature: float) -> ActionDistribution:
        """Return the distribution of these choices. answer: at `point`."""
