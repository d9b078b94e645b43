"""FlowTime: which way the flow time of a network runs. Methods and losses ask it, and assume no direction.

openpi and LeRobot's SmolVLA and pi count from t = 1, noise, to t = 0, an action; NVIDIA's GR00T from 0 to 1. In both a
point of the path is s e + (1 - s) a for noise e and action a, where s, the share of noise, runs from 1 to 0, and the
velocity is its derivative by t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

Number = TypeVar("Number", float, torch.Tensor)


@dataclass(frozen=True)
class FlowTime:
    """The times of the ends of the path, 0 and 1 or 1 and 0.

    Example: FlowTime(noise=0.0, action=1.0).after(1, 4) == 0.25.
    """

    noise: float
    action: float

    @property
    def sign(self) -> float:
        """Derivative of t along the way from noise to action: 1 or -1."""
        return self.action - self.noise

    def after(self, step: int, num_steps: int) -> float:
        """Return the time after `step` of `num_steps` equal steps from noise to action."""
        done = step / num_steps
        return done if self.sign > 0 else 1.0 - done

    def of_share(self, share: Number) -> Number:
        """Return the time at which the share of noise is `share`."""
        return 1.0 - share if self.sign > 0 else share

    def share(self, time: Number) -> Number:
        """Return the share of noise at a time."""
        return 1.0 - time if self.sign > 0 else time

    def to_action(self, x: torch.Tensor, velocity: torch.Tensor, amount: Number) -> torch.Tensor:
        """Return x after `amount` of the way, a number or a tensor that broadcasts, along the velocity to an action."""
        return x + amount * velocity if self.sign > 0 else x - amount * velocity

    def to_noise(self, x: torch.Tensor, velocity: torch.Tensor, amount: Number) -> torch.Tensor:
        """Return x after `amount` of the way against the velocity to noise."""
        return x - amount * velocity if self.sign > 0 else x + amount * velocity

    def velocity(self, noise: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the velocity of the straight path between the two."""
        return action - noise if self.sign > 0 else noise - action


NOISE_AT_ONE = FlowTime(1.0, 0.0)
NOISE_AT_ZERO = FlowTime(0.0, 1.0)
