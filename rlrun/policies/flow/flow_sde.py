"""Flow-SDE: a flow sampler in which one Euler step is random, so that a policy has an exact log-probability.

Convention of time and sign, as in openpi and LeRobot: t = 1 is noise and t = 0 is the action. A network is trained on
x_t = t noise + (1 - t) action to predict the velocity v = noise - action, and one Euler step of size d goes from x_t to
x_t - d v. With x0 = x - t v (the predicted action) and x1 = x + (1 - t) v (the predicted noise), the score of the
marginal at t is -x1 / t.

The random step adds noise of deviation s sqrt(d), with s = a sqrt(t / (1 - t)) for a noise level a, and moves the mean
by -(s^2 d / 2 t) x1, so that the marginals of the stochastic process are those of the ODE (Song et al., 2021,
"Score-based generative modeling through stochastic differential equations", section 4.3). At t = 1, where s is
infinite, the time of the following step takes the place of t in the denominator. The settings are those of pi-RL
(arXiv 2510.25889).

The deviation depends on the step only. Thus the KL between two policies at one step is closed, and the entropy is
constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class FlowSde:
    """The steps of a sampler. Example: FlowSde(4, 0.5) has the times 1, 0.75, 0.5 and 0.25."""

    num_steps: int  # K
    noise_level: float  # a

    @property
    def size(self) -> float:
        """Size d of a step."""
        return 1.0 / self.num_steps

    @cached_property
    def times(self) -> tuple[float, ...]:
        """Time before each of the K steps."""
        return tuple(1.0 - k / self.num_steps for k in range(self.num_steps))

    @cached_property
    def stds(self) -> tuple[float, ...]:
        """Deviation that the random step adds, if it is step k."""
        second = 1.0 - self.size  # stands for the first time, 1, in the denominator
        rates = (t / (1.0 - min(t, second)) for t in self.times)
        return tuple(self.noise_level * (rate * self.size) ** 0.5 for rate in rates)

    def time_of(self, step: Tensor) -> Tensor:
        """Return the time before step k: float32 [B] of int64 [B]."""
        return _taken(self.times, step)

    def std_of(self, step: Tensor) -> Tensor:
        """Return the deviation of step k as the random one: float32 [B] of int64 [B]."""
        return _taken(self.stds, step)

    def euler(self, x: Tensor, velocity: Tensor) -> Tensor:
        """Return x after one deterministic step; all [...]."""
        return x - self.size * velocity

    def mean(self, x: Tensor, velocity: Tensor, step: Tensor) -> Tensor:
        """Return the mean after a random step: x, velocity [B, ...], step int64 [B]."""
        shape = (-1, *(1,) * (x.ndim - 1))
        time, std = self.time_of(step).view(shape), self.std_of(step).view(shape)
        noise = x + (1.0 - time) * velocity
        return self.euler(x, velocity) - std.square() / (2.0 * time) * noise


def _taken(values: tuple[float, ...], step: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=step.device)[step]
