"""Linear layers of float32 on CPUs, computed by oneDNN; and convolutions of patches, which are linear layers too.

torch gives matrix products of float32 to MKL, which keeps its widest instructions from processors that are not Intel's.
oneDNN, which comes with torch as well, does not: with its gradients a layer takes some two thirds of the time there
(`python -m benchmarks.mathematics`). A tanh that follows is computed with the product. Numbers differ by rounding only:
nothing is computed in fewer digits.
Shape legend: x [..., K], weight [N, K], bias [N] or None; the product is [..., N].
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.policies.policy import Policy

# Products of two numbers; with fewer a call of oneDNN is prepared for longer than it saves.
MIN_PRODUCTS, MIN_PRODUCTS_TANH = 1 << 22, 1 << 20
_HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")


def use_onednn(policy: Policy) -> None:
    """Let every linear layer of a policy on a CPU compute by oneDNN, with the tanh that follows it in a sequence, and
    what projects patches of pictures; in place, before it is sharded.

    Only `forward` changes, of both: parameters keep their names. Where torch lacks oneDNN nothing changes.
    """
    if policy.device.type != "cpu" or not _HAS_ONEDNN:
        return
    for part in policy.module.modules():
        if type(part) is nn.Linear:
            part.forward = partial(_forward, part, False)
        elif type(part) is nn.Conv2d and _takes_patches(part):
            part.forward = partial(_project_patches, part)
    for part in policy.module.modules():
        if type(part) is nn.Sequential:
            for layer, activation in pairwise(part):
                if type(layer) is nn.Linear and type(activation) is nn.Tanh:
                    layer.forward, activation.forward = partial(_forward, layer, True), _as_it_is


def _forward(layer: nn.Linear, has_tanh: bool, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias, has_tanh)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _takes_patches(layer: nn.Conv2d) -> bool:
    """Whether it cuts pictures into patches, none of which overlap, and multiplies each with the same numbers."""
    is_whole = layer.padding == (0, 0) and layer.dilation == (1, 1) and layer.groups == 1
    return layer.stride == layer.kernel_size and is_whole


def _project_patches(layer: nn.Conv2d, pictures: Tensor) -> Tensor:
    """As a convolution: [B, K, H, W] -> [B, N, H/P, W/P]; what does not fill a patch is left out."""
    batch, channels = pictures.shape[:2]
    height, width = layer.kernel_size
    rows, columns = pictures.shape[2] // height, pictures.shape[3] // width
    whole = pictures[:, :, : rows * height, : columns * width]
    patches = whole.reshape(batch, channels, rows, height, columns, width).permute(0, 2, 4, 1, 3, 5)
    projected = linear(patches.reshape(batch, rows * columns, -1), layer.weight.flatten(1), layer.bias)
    return projected.transpose(1, 2).unflatten(2, (rows, columns))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, has_tanh: bool = False) -> Tensor:
    """As `torch.nn.functional.linear`, or the tanh of it, with gradients; by oneDNN where that is possible and pays."""
    is_float32 = x.dtype is weight.dtype is torch.float32 and x.device.type == "cpu" and _HAS_ONEDNN
    enough = MIN_PRODUCTS_TANH if has_tanh else MIN_PRODUCTS
    if not is_float32 or x.ndim < 2 or x.numel() * len(weight) < enough:
        product = F.linear(x, weight, bias)
        return product.tanh() if has_tanh else product
    if not torch.is_grad_enabled():
        return _product(x, weight, bias, has_tanh)
    return _Linear.apply(x, weight, bias, has_tanh)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, has_tanh: bool) -> Tensor:
        result = _product(x, weight, bias, has_tanh)
        ctx.save_for_backward(x, weight, result if has_tanh else None)
        return result

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, tanh = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        if tanh is not None:
            gradient = torch.ops.aten.tanh_backward(gradient, tanh)
        rows = gradient.flatten(0, -2)
        return (
            _product(gradient, weight.t()) if of_x else None,
            _product(rows.t(), x.flatten(0, -2).t()) if of_weight else None,
            rows.sum(0) if of_bias else None,
            None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, has_tanh: bool = False) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "tanh" if has_tanh else "none", [], "")
