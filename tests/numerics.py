"""Judging computed numbers by the norm of their error, never one by one: what holds so holds on every processor.

A processor decides in which order sums are taken, and so the last digits. An element that is small because large
numbers cancelled is exact to the size of those numbers only, whoever computed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

EPS = torch.finfo(torch.float32).eps

Numbers = Tensor | np.ndarray | float | list | tuple  # what numpy can make an array of
Named = Mapping[str, Numbers]


def rounding(num_terms: int) -> float:
    """The relative error, with a wide margin, of sums of so many float32 numbers in any order."""
    return 8 * EPS * num_terms**0.5


def norm_error(actual: Numbers, reference: Numbers, scale: float = 0.0) -> float:
    """||actual - reference|| / ||reference||, in float64.

    scale: the norm of what was summed, where it is larger, since the sum cancels.
    """
    a, b = _array(actual), _array(reference)
    assert a.shape == b.shape, f"shapes {a.shape} and {b.shape}"
    return float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), float(scale), 1e-300)


def assert_norm_close(actual: Numbers, reference: Numbers, rtol: float, scale: float = 0.0, name: str = "") -> None:
    """The error by the norm is at most rtol."""
    error = norm_error(actual, reference, scale)
    assert error <= rtol, f"{name or 'numbers'}: ||a - b|| / ||b|| = {error:.2e}, allowed {rtol:.2e}"


def assert_all_norm_close(actual: Named, reference: Named, rtol: float, scale: float = 0.0) -> None:
    """Each entry by its own norm."""
    assert actual.keys() == reference.keys()
    for name in reference:
        assert_norm_close(actual[name], reference[name], rtol, scale, name)


def assert_moved_alike(before: Named, after: Named, reference: Named, rtol: float = 1e-3) -> None:
    """Each entry of `after` differs from `reference` by at most rtol times how far `reference` moved from `before`.

    Where steps are small, weights are alike whatever was learned; their movements are not.
    """
    assert after.keys() == reference.keys()
    for name in reference:
        start = _array(before[name])
        assert_norm_close(_array(after[name]) - start, _array(reference[name]) - start, rtol, name=name)


def assert_as_exact(fast: Named, slow: Named, exact: Named, times: float = 4.0, floor: float = 32 * EPS) -> None:
    """Each entry of `fast` lies at most `times` as far from `exact` as that of `slow`, by the norm.

    floor: a share of the norm of `exact` that is allowed anyway, since `slow` may be right by chance.
    """
    assert fast.keys() == slow.keys() == exact.keys()
    for name, reference in exact.items():
        error, usual = norm_error(fast[name], reference), norm_error(slow[name], reference)
        allowed = times * usual + floor
        assert error <= allowed, f"{name}: relative error {error:.2e}, allowed {allowed:.2e}; the slow one: {usual:.2e}"


def computed_in_double(module: nn.Module, call: Callable[..., Any], *inputs: Tensor | np.ndarray | None) -> Any:
    """call(copy of the module, *inputs) in float64 throughout, also where the code asks for float32."""
    doubles = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    with _DoubleForFloat():
        return call(deepcopy(module).double(), *doubles)


class _DoubleForFloat(TorchFunctionMode):
    """Float64 wherever torch is asked for float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = Tensor.double if func is Tensor.float else func
        args = tuple(torch.float64 if x is torch.float32 else x for x in args)
        return func(*args, **{k: torch.float64 if x is torch.float32 else x for k, x in (kwargs or {}).items()})


def _array(numbers: Numbers) -> np.ndarray:
    if isinstance(numbers, Tensor):
        numbers = numbers.detach().cpu().double().numpy()
    return np.asarray(numbers, np.float64)
