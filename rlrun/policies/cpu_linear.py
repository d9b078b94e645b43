"""Linear layers of float32 on CPUs, computed by oneDNN.

torch gives matrix products of float32 to MKL, which keeps its widest instructions from processors that are not Intel's.
oneDNN, which comes with torch as well, does not: with its gradients a layer takes some two thirds of the time there
(`python -m benchmarks.mathematics`). Numbers differ by rounding only: nothing is computed in fewer digits.
Shape legend: x [..., K], weight [N, K], bias [N] or None; the product is [..., N].
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.policies.policy import Policy

MIN_PRODUCTS = 1 << 22  # of two numbers; with fewer a call of oneDNN is prepared for longer than it saves


def use_onednn(policy: Policy) -> None:
    """Let every linear layer of a policy on a CPU compute by oneDNN; in place, before it is sharded.

    Only their `forward` changes: parameters keep their names. Where torch lacks oneDNN nothing changes.
    """
    if policy.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return
    for part in policy.module.modules():
        if type(part) is nn.Linear:
            part.forward = partial(_forward, part)


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As `torch.nn.functional.linear`, with gradients; by oneDNN where that is worth it."""
    is_float32 = x.dtype is weight.dtype is torch.float32
    if not is_float32 or x.ndim < 2 or x.numel() * len(weight) < MIN_PRODUCTS:
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return _product(x, weight, bias)
    return _Linear.apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _product(gradient, weight.t()) if of_x else None,
            _product(rows.t(), x.flatten(0, -2).t()) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
