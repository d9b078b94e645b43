"""Real-time chunking: a new chunk is drawn so that it goes on with actions that the robot executes meanwhile.

Source: "Real-time execution of action chunking flow policies" (arXiv 2506.07339), in the form of LeRobot's: at every
flow step the action that the network expects is compared with the coming ones, and the velocity is turned by a multiple
of the difference. The paper multiplies the difference by the network's Jacobian, which LeRobot leaves out.

Shape legend: B rows, S control steps and D dimensions of the network's own chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlrun.config.schema import PrefixSchedule
from rlrun.policies.flow.method import VelocityFn
from rlrun.policies.flow.time import FlowTime

# Share of the way from the last executed action to the end of the horizon, 1 to 0 -> weight
_FALL: dict[PrefixSchedule, Callable[[Tensor], Tensor]] = {
    PrefixSchedule.zeros: torch.zeros_like,
    PrefixSchedule.ones: torch.ones_like,
    PrefixSchedule.linear: lambda left: left,
    PrefixSchedule.exp: lambda left: left * torch.expm1(left) / (math.e - 1.0),
}


def prefix_weights(schedule: PrefixSchedule, delay: int, horizon: int, num_steps: int) -> Tensor:
    """Return the weight of each control step's difference, float32 [S].

    It is 1 for the first `delay` steps, falls by the schedule until `horizon`, and is 0 after it.
    """
    horizon = min(horizon, num_steps)
    fixed = min(delay, horizon)
    between = torch.linspace(1.0, 0.0, horizon - fixed + 2)[1:-1]
    return torch.cat([torch.ones(fixed), _FALL[schedule](between), torch.zeros(num_steps - horizon)])


@dataclass(frozen=True, eq=False)
class Guidance:
    """Turns velocities towards coming actions. Example: guided = Guidance(…).guided(velocity_fn)"""

    coming: Tensor  # float32 [B, S, D], normalized; 0 where there are none
    weights: Tensor  # float32 [B, S, 1]; 0: free
    max_weight: float  # of a difference, in a velocity; early flow steps reach it
    flow_time: FlowTime

    def guided(self, velocity_fn: VelocityFn) -> VelocityFn:
        """Return the velocity function that goes to the coming actions."""

        def turned(x: Tensor, time: Tensor, num_rows: int) -> tuple[Tensor, Tensor | None]:
            velocity, noise = velocity_fn(x, time, num_rows)
            x = x.to(velocity.device)
            share = self.flow_time.share(time.to(velocity.device))[:, None, None]
            expected = self.flow_time.to_action(x, velocity, share)
            error = (self.coming - expected) * self.weights
            return velocity + self.flow_time.sign * self._strength(share) * error, noise

        return turned

    def _strength(self, share: Tensor) -> Tensor:
        """Return the factor of the difference at a share of noise, which has no limit of its own near noise."""
        strength = (share.square() + (1.0 - share).square()) / (share * (1.0 - share))
        return strength.clamp(max=self.max_weight)
