"""What a flow policy stores of its choice: what judges its random steps again, and the action that came of them.

Shape legend: B rows, S control steps and D dimensions of the network's own chunk, K = C*A executed numbers,
F flow steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class FlowChoice:
    """Of Flow-SDE, the random step of each row: its number, x before and after it, its mean, and the final action."""

    step: Tensor  # int64 [B]
    before: Tensor  # float32 [B, S, D]
    after: Tensor  # float32 [B, K], the executed control steps and real dimensions
    mean: Tensor  # float32 [B, K], of `after` under the policy that acted: for the KL from it
    action: Tensor  # float32 [B, K], normalised

    def packed(self) -> Tensor:
        """Return float32 [B, 1 + S*D + 3K], the tokens of this choice."""
        return torch.cat([self.step[:, None].float(), self.before.flatten(1), self.after, self.mean, self.action], 1)

    @classmethod
    def of(cls, tokens: Tensor, num_steps: int, num_dims: int) -> FlowChoice:
        """Unpack tokens of a network with S = num_steps and D = num_dims."""
        own = num_steps * num_dims
        num_executed = (tokens.shape[1] - 1 - own) // 3
        step, before, *executed = tokens.float().split([1, own, *[num_executed] * 3], dim=1)
        return cls(step[:, 0].round().long(), before.unflatten(1, (num_steps, num_dims)), *executed)


@dataclass(frozen=True, eq=False)
class FlowChain:
    """Of Flow-Noise, x before every step, and the action after the last one."""

    before: Tensor  # float32 [B, F, S, D]
    action: Tensor  # float32 [B, K], normalized

    def packed(self) -> Tensor:
        """Return float32 [B, F*S*D + K], the tokens of this chain."""
        return torch.cat([self.before.flatten(1), self.action], dim=1)

    @classmethod
    def of(cls, tokens: Tensor, num_flow_steps: int, num_steps: int, num_dims: int) -> FlowChain:
        """Unpack tokens of F = num_flow_steps, S = num_steps and D = num_dims."""
        own = num_flow_steps * num_steps * num_dims
        before, action = tokens[:, :own].float(), tokens[:, own:].float()
        return cls(before.unflatten(1, (num_flow_steps, num_steps, num_dims)), action)
