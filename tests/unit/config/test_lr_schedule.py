"""Learning rates fall as their schedule says."""

from __future__ import annotations

import math

import pytest

from rlrun.config.schema import LrSchedule


def test_the_factors() -> None:
    assert [LrSchedule.constant.factor(at, 0.1) for at in (0.0, 0.7, 2.0)] == [1.0, 1.0, 1.0]
    assert [LrSchedule.linear.factor(at, 0.1) for at in (0.0, 0.5, 1.0, 2.0)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    expected = [1.0, 0.5 + 0.25 * math.sqrt(2), 0.5, 0.0]
    assert [LrSchedule.cosine.factor(at, 0.0) for at in (0.0, 0.25, 0.5, 1.0)] == pytest.approx(expected)
