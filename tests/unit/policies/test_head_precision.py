"""Logits and values are computed in float32 from bfloat16 weights, which halves the gap between rollout and actor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rlrun.policies.distributions import ValueHead, linear_in_float32

ROWS, WIDTH, BINS = 512, 1024, 256
LOGIT_STD = 6.0  # as of a trained policy, which is sure of most tokens
ONE_ROUNDING = 2.0**-9  # relative error of one rounding to bfloat16


def passes() -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights, and hidden states of two passes that differ by one rounding, as those of two kernels do."""
    draw = torch.Generator().manual_seed(0)
    weight = (torch.randn(BINS, WIDTH, generator=draw) * LOGIT_STD / WIDTH**0.5).bfloat16()
    hidden = torch.randn(ROWS, WIDTH, generator=draw).bfloat16()
    noise = 1 + ONE_ROUNDING * torch.randn(ROWS, WIDTH, generator=draw)
    return weight, hidden, (hidden.float() * noise).bfloat16()


def test_the_gap_of_log_probabilities_at_least_halves(capsys: pytest.CaptureFixture[str]) -> None:
    weight, acted, learned = passes()
    exact = F.linear(acted.double(), weight.double())
    tokens = exact.softmax(-1).multinomial(1, generator=torch.Generator().manual_seed(1))

    def gap(head) -> float:
        one, other = (head(hidden, weight).float().log_softmax(-1).gather(-1, tokens) for hidden in (acted, learned))
        return float((one - other).square().mean().sqrt())

    rounded, exactly = gap(F.linear), gap(linear_in_float32)
    with capsys.disabled():
        print(f"\n  gap per token: {rounded:.4f} nats with a bfloat16 head, {exactly:.4f} with a float32 head")
    assert exactly <= rounded / 2


def test_values_are_float32_of_bfloat16_weights() -> None:
    torch.manual_seed(0)
    head = ValueHead(WIDTH, [64]).bfloat16()
    hidden = torch.randn(ROWS, WIDTH).bfloat16()
    values = head(hidden)
    exact = head.double().layers(hidden.double()).squeeze(-1)
    assert values.dtype == torch.float32
    assert (values.double() - exact).norm() <= 1e-5 * exact.norm()
