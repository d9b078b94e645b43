"""A callback with a metric of its own: the mean distance at the end of episodes, averaged over the steps."""

from __future__ import annotations

import math

import rlrun


class MovingAverage(rlrun.Callback):
    """Averages a metric exponentially."""

    def __init__(self, metric: str, weight: float = 0.3):
        self.metric = metric
        self.weight = weight
        self.average = math.nan

    def on_start(self, config, folder):
        print(f"averages {self.metric} of {folder}")

    def on_step(self, step, metrics):
        value = metrics[self.metric]  # NaN in a step in which no episode ended
        if math.isnan(value):
            return
        self.average = value if math.isnan(self.average) else self.average + self.weight * (value - self.average)
        self.log("mine/average", self.average)

    def on_evaluation(self, result):
        self.log("mine/evaluated", result.numbers[self.metric])

    def on_end(self, status):
        print(f"the run ended with status {int(status)}; the average is {self.average:.3g}")
