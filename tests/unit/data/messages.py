"""Comparison of messages bit for bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


def assert_same(message: Any, expected: Any) -> None:
    """Two messages are equal to the bit: types, shapes, and the sign and payload of each number."""
    assert type(message) is type(expected)
    for field in dataclasses.fields(expected):
        one = getattr(message, field.name)
        other = getattr(expected, field.name)
        if isinstance(other, np.ndarray):
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), field.name
        elif dataclasses.is_dataclass(other):
            assert_same(one, other)
        else:
            assert one == other, field.name
