"""How many times longer everything may take on a crowded host."""

from __future__ import annotations

import os

_USUAL_LOAD = 2.0  # processes per core
DRIVERS = 2.0  # at most, for the driver and what only looks after it


def slack_of(load: float, most: float) -> float:
    """load: processes that want to run, per core. Example: slack_of(5.0, most=3.0) == 2.5."""
    return min(most, max(1.0, load / _USUAL_LOAD))


def slack_here() -> float:
    """Of this host, for the driver."""
    return slack_of(os.getloadavg()[0] / (os.cpu_count() or 1), DRIVERS)
