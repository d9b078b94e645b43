"""The flow-matching loss: how far a predicted velocity is from the one that leads to the demonstrated action.

Shape legend: B rows, S control steps and D dimensions of the network's own chunk, C valid control steps at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlrun.algorithms.losses import masked_mean
from rlrun.data.seeds import mixed
from rlrun.policies import sampling
from rlrun.policies.flow.model import Point

TIME_ALPHA = 1.5  # times are Beta(1.5, 1): more of them near the noise, as openpi and LeRobot draw them
TIME_RANGE = (0.001, 1.0)  # of the drawn times


@dataclass(frozen=True, eq=False)
class Matching:
    """The points at which velocities are compared, and the velocities that are right there."""

    point: Point
    target: Tensor  # float32 [B, S, D]

    @classmethod
    def drawn(cls, actions: Tensor, count: int) -> Matching:
        """Draw a time and noise for each row. actions: normalised, float32 [B, S, D].

        count: of losses before this one. The same count gives the same draws, so that a resumed run repeats itself.
        """
        num_rows, num_numbers = len(actions), actions[0].numel()
        keys = mixed((np.uint64(count) << np.uint64(32)) + np.arange(num_rows, dtype=np.uint64))
        numbers = sampling.normals(keys, num_numbers + 1).float()
        noise = numbers[:, 1:].view(actions.shape).to(actions)
        low, high = TIME_RANGE
        uniform = torch.special.ndtr(numbers[:, 0])
        time = (low + (high - low) * uniform.pow(1.0 / TIME_ALPHA)).to(actions)
        at = time[:, None, None]
        return cls(Point((at * noise + (1.0 - at) * actions)[:, None], time[:, None]), noise - actions)

    def loss(self, velocity: Tensor, step_valid: Tensor, num_actions: int) -> Tensor:
        """Return the mean square over real dimensions of valid control steps; 0 if none is valid.

        velocity: float32 [B, S, D]; step_valid: bool [B, C].
        """
        errors = (velocity - self.target)[:, : step_valid.shape[1], :num_actions].square().mean(-1)
        return masked_mean(errors, step_valid)
