"""A callback of yours: the distance at the end of episodes, averaged over the steps, as a metric of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping

import rlrun


class Averaged(rlrun.Callback):
    """Averages `info_end/distance` exponentially, and logs it as `own/distance`."""

    def __init__(self, weight: float = 0.3):
        self.weight = weight
        self.average = math.nan

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the value of a step; it is NaN in a step in which no episode ended."""
        value = metrics["info_end/distance"]
        if math.isnan(value):
            return
        self.average = value if math.isnan(self.average) else self.average + self.weight * (value - self.average)
        self.log("own/distance", self.average)
