"""Descriptions of the differences between a message and the recorded one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np


def differences(recorded: Any, now: Any, name: str = "") -> Iterator[str]:
    """Return one line per field that differs between two messages of a type; none if they are equal bit for bit.

    Example: "rewards: 3 of 64 differ, first [5, 2, 0]: 0.25 recorded, 0 now; by 0.25 at most"
    """
    if recorded is None or now is None:
        if recorded is not now:
            yield f"{name}: {'none recorded, some now' if recorded is None else 'some recorded, none now'}"
    elif isinstance(recorded, np.ndarray):
        yield from _of_arrays(recorded, now, name)
    elif dataclasses.is_dataclass(recorded):
        for field in dataclasses.fields(recorded):
            below = f"{name}.{field.name}" if name else field.name
            yield from differences(getattr(recorded, field.name), getattr(now, field.name), below)
    elif recorded != now:
        yield f"{name}: {recorded!r} recorded, {now!r} now"


def _of_arrays(recorded: np.ndarray, now: np.ndarray, name: str) -> Iterator[str]:
    if recorded.shape != now.shape or recorded.dtype != now.dtype:
        yield f"{name}: {recorded.dtype} {recorded.shape} recorded, {now.dtype} {now.shape} now"
        return
    is_float = np.issubdtype(recorded.dtype, np.floating)
    differs = recorded != now
    if is_float:
        differs &= ~(np.isnan(recorded) & np.isnan(now))
    if not differs.any():
        return
    first = tuple(np.argwhere(differs)[0].tolist())
    line = f"{name}: {differs.sum()} of {differs.size} differ, first {list(first)}: "
    line += f"{_text(recorded[first])} recorded, {_text(now[first])} now"
    if recorded.dtype != bool:
        line += f"; by {np.nanmax(np.abs(recorded.astype(float) - now.astype(float))):.3g} at most"
    yield line


def _text(value: Any) -> str:
    return f"{value:.6g}" if np.issubdtype(value.dtype, np.floating) else str(value)
