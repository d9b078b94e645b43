"""The Wilson interval against published values and its defining equation."""

import math

import pytest

from rlrun.observability.records import wilson_interval


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_published_values(successes: int, episodes: int, low: float, high: float) -> None:
    # Newcombe 1998, table I, method 3
    assert wilson_interval(successes, episodes) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "episodes"), [(1, 3), (32, 64), (61, 64)])
def test_bounds_solve_the_score_equation(successes: int, episodes: int) -> None:
    rate = successes / episodes
    for bound in wilson_interval(successes, episodes):
        assert abs(rate - bound) == pytest.approx(1.959964 * math.sqrt(bound * (1 - bound) / episodes), rel=1e-5)


def test_edges() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 5)[0] == 0.0
    assert wilson_interval(5, 5)[1] == 1.0
    with pytest.raises(ValueError, match="6 successes out of 5"):
        wilson_interval(6, 5)
    with pytest.raises(ValueError, match="confidence"):
        wilson_interval(1, 2, confidence=95)
