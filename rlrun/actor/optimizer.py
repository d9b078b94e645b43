"""AdamW over the shards: a separate learning rate for the value head, schedule, clipping, skipped steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from rlrun.actor.adamw import CheckpointedAdamW
from rlrun.actor.process_group import Ranks
from rlrun.config.schema import ActorConfig, OptimizerKind

VALUE_HEAD = "value_head."


class GuardedOptimizer:
    """An optimizer that steps only if all gradients are finite.

    Build it before the first no-grad forward pass: after that the root's parameters are whole tensors, and an optimizer
    over those never updates the shards.
    """

    def __init__(
        self,
        module: nn.Module,
        config: ActorConfig,
        lr: float,
        value_lr: float,
        warmup_steps: int,
        decay: Callable[[], float] = lambda: 1.0,
    ):
        """decay: returns the present factor of the learning rates, which the warm-up multiplies."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.parameters = [p for _, p in named]
        self._policy_parameters = [p for name, p in named if VALUE_HEAD not in name]
        groups: list[dict[str, Any]] = [
            {"params": self._policy_parameters, "lr": lr},
            {"params": [p for name, p in named if VALUE_HEAD in name], "lr": value_lr},
        ]
        first_beta, second_beta = config.betas
        self.inner = _optimizer_class(config)(
            [group for group in groups if group["params"]],
            betas=(first_beta, second_beta),
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.num_steps = 0  # steps taken; a resumed run needs only this and the states of `inner`
        self._base_lrs = [group["lr"] for group in self.inner.param_groups]
        self._warmup_steps, self._decay = max(1, warmup_steps), decay
        self._max_norm = config.clip_grad_norm

    @property
    def lr(self) -> float:
        """Learning rate of the next step for all parameters but the value head."""
        return self._base_lrs[0] * self._factor()

    def _factor(self) -> float:
        return self._decay() * min(1.0, (self.num_steps + 1) / self._warmup_steps)

    def step(self, ranks: Ranks) -> tuple[float, bool]:
        """Clip by global norm and step. Returns (norm before clipping, whether it stepped).

        If a gradient is not finite on any rank, no rank steps. Gradients are cleared in both cases.
        """
        norm = clip_to_norm(self.parameters, self._max_norm)
        is_finite = not ranks.any(not math.isfinite(norm))
        if is_finite:
            for group, base_lr in zip(self.inner.param_groups, self._base_lrs, strict=True):
                group["lr"] = base_lr * self._factor()
            self.inner.step()
            self.num_steps += 1
        self.clear()
        return norm, is_finite

    def clear(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def keep_only_value_head(self) -> None:
        """Clear the gradients of all parameters but the value head: AdamW skips parameters without gradients."""
        for parameter in self._policy_parameters:
            parameter.grad = None


def _optimizer_class(config: ActorConfig) -> type[CheckpointedAdamW]:
    """Return the optimizer class. Raises RunError if its library is missing."""
    if config.optimizer is OptimizerKind.adamw:
        return CheckpointedAdamW
    from rlrun.actor.eight_bit import EightBitAdamW, require_library  # bitsandbytes is optional

    require_library()
    return EightBitAdamW


def clip_to_norm(parameters: Sequence[nn.Parameter], max_norm: float) -> float:
    """Scale gradients so that their norm over all ranks is at most max_norm. Returns the norm before.

    Ranks that hold parts of the same parameters call it together.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
