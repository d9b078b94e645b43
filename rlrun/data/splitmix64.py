"""SplitMix64 (Steele, Lea and Flood, 2014): numbers from a counter or a key, for all rows of an array at once."""

from __future__ import annotations

import numpy as np

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # what the state grows by from one number to the next
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)


def mixed(state: np.ndarray) -> np.ndarray:
    """The number of each state: uint64, of the same shape."""
    for shift, factor in _ROUNDS:
        state = (state ^ (state >> shift)) * factor  # wraps around
    return state ^ (state >> _LAST_SHIFT)
