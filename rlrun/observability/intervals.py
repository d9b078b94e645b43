"""The Wilson confidence interval of a success rate, which is valid with few episodes and at 0 % and 100 %."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist


def wilson_interval(successes: int, episodes: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the lower and upper bound of the success probability, each in 0..1; (0, 1) without episodes.

    Example: wilson_interval(58, 64) is about (0.81, 0.96).
    """
    if not 0 <= successes <= episodes:
        raise ValueError(f"{successes} successes out of {episodes} episodes is impossible")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is a share between 0 and 1, not {confidence}")
    if episodes == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / episodes
    shrink = 1 + z * z / episodes
    centre = (rate + z * z / (2 * episodes)) / shrink
    half_width = z / shrink * sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes**2))
    low = 0.0 if successes == 0 else centre - half_width  # exact, where the formula has rounding errors
    high = 1.0 if successes == episodes else centre + half_width
    return low, high
