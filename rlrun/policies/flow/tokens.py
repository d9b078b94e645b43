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
    """Of Flow-SDE, the random step of each row: its number, x before and after it, and the final action."""

    step: Tensor  # int64 [B]
    before: Tensor  # float32 [B, S, D]
    after: Tensor  # float32 [B, K], the executed control steps and real dimensions
    action: Tensor  # float32 [B, K], normalised

    def packed(self) -> Tensor:
        """Return float32 [B, 1 + S*D + 2K], the tokens of this choice."""
        return torch.cat([self.step[:, None].float(), self.before.flatten(1), self.after, self.action], dim=1)

    @classmethod
    def of(cls, tokens: Tensor, num_steps: int, num_dims: int) -> FlowChoice:
        """Unpack tokens of a network with S = num_steps and D = num_dims."""
        own = num_steps * num_dims
        num_executed = (tokens.shape[1] - 1 - own) // 2
        step, before, after, action = tokens.float().split([1, own, num_executed, num_executed], dim=1)
        return cls(step[:, 0].round().long(), before.unflatten(1, (num_steps, num_dims)), after, action)


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
