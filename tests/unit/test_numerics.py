"""The rule that judges numbers finds what is wrong, and nothing in the order of a sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.numerics import (
    assert_as_exact,
    assert_moved_alike,
    assert_norm_close,
    computed_in_double,
    norm_error,
    rounding,
)

DRAWN = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))


def test_another_order_of_a_sum_is_rounding_and_a_lost_term_is_not() -> None:
    exact = DRAWN.double().sum(1)
    one_by_one = torch.stack([DRAWN[:, k] for k in range(1024)]).cumsum(0)[-1]
    assert_norm_close(DRAWN.sum(1), exact, rounding(1024))
    assert_norm_close(one_by_one, exact, rounding(1024))
    with pytest.raises(AssertionError, match=r"sums: .* allowed 3.05e-05"):
        assert_norm_close(DRAWN[:, 1:].sum(1), exact, rounding(1024), name="sums")


def test_a_small_element_counts_by_the_numbers_that_cancelled() -> None:
    found, exact = np.array([200.0, 1e-4]), np.array([200.0, 2e-4])
    assert not np.allclose(found, exact, rtol=1e-3, atol=1e-5)
    assert_norm_close(found, exact, rounding(1))
    assert_norm_close(1e-9, 2e-9, rounding(1), scale=1.0)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_one_wrong_number_is_found(wrong: float) -> None:
    found = DRAWN.clone()
    found[3, 5] = wrong
    with pytest.raises(AssertionError):
        assert_norm_close(found, DRAWN, rounding(1024))


def test_shapes_are_not_broadcast() -> None:
    with pytest.raises(AssertionError, match=r"\(64, 1\) and \(64,\)"):
        norm_error(torch.ones(64, 1), torch.ones(64))


def test_movements_are_compared_where_weights_hardly_moved() -> None:
    before = {"weight": np.ones(100)}
    right, wrong = {"weight": np.full(100, 1 + 1e-6)}, {"weight": np.full(100, 1 - 1e-6)}
    assert_moved_alike(before, right, right)
    with pytest.raises(AssertionError, match="weight"):
        assert_moved_alike(before, wrong, right)


def test_the_fast_way_may_be_as_wrong_as_the_slow_one() -> None:
    exact = {"y": DRAWN.double()}
    slow, alike, worse = ({"y": DRAWN.double() * (1 + error)} for error in (1e-4, -3e-4, 1e-3))
    assert_as_exact(alike, slow, exact)
    with pytest.raises(AssertionError, match="the slow one: 1.00e-04"):
        assert_as_exact(worse, slow, exact)


def test_a_module_computes_in_double_even_where_it_asks_for_float32() -> None:
    layer = torch.nn.Linear(1024, 8)

    def call(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(x.to(torch.float32)).float().softmax(-1, dtype=torch.float32)

    found = computed_in_double(layer, call, DRAWN)
    assert found.dtype is torch.float64 and layer.weight.dtype is torch.float32
    weight, bias = (p.detach().numpy().astype(np.float64) for p in (layer.weight, layer.bias))
    powers = np.exp(DRAWN.numpy().astype(np.float64) @ weight.T + bias)
    assert_norm_close(found, powers / powers.sum(1, keepdims=True), 1e-14)
