"""The course of the learning rate over the training steps of a run; the warm-up is counted in optimizer steps."""

from __future__ import annotations

import math

from rlrun.config.schema import LrSchedule


def decayed(schedule: LrSchedule, progress: float, min_lr_ratio: float) -> float:
    """Return the factor of the learning rate: 1 at the start, `min_lr_ratio` at the end of a falling schedule.

    progress: training steps done, as a share of num_steps; above 1 it counts as 1.
    Example: decayed(LrSchedule.linear, 0.5, 0.1) is 0.55.
    """
    if schedule is LrSchedule.constant:
        return 1.0
    at = min(1.0, max(0.0, progress))
    height = 1.0 - at if schedule is LrSchedule.linear else 0.5 * (1.0 + math.cos(math.pi * at))
    return min_lr_ratio + (1.0 - min_lr_ratio) * height
