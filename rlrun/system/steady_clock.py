"""The time of day, as a clock that runs evenly: spans of several hosts lie side by side, whatever sets their clocks."""

from __future__ import annotations

import time

_CLOCK = time.CLOCK_BOOTTIME  # it counts the time in which a machine sleeps, so that hosts stay together
_OFFSET_S = time.time() - time.clock_gettime(_CLOCK)  # of this process, which keeps the time of day of its start


def seconds() -> float:
    """Return the seconds since 1970, as they would be had nobody set the clock since this process began."""
    return time.clock_gettime(_CLOCK) + _OFFSET_S
