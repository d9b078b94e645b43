"""Finds the numbers in the `info` of a world, which become metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlrun.edges.episode_numbers import LEFT_OUT, NUMBERS, Totals, add_number

MAX_NUMBERS = 64  # names of a world; further ones are left out
MAX_DEPTH = 3  # mappings within mappings
_MAX_TOLD = 16  # names that are told to be left out
_LONGEST_NAME = 100  # characters
_NO_NUMBER = "no number"
_NOT_FINITE = "not finite"
_TOO_MANY = f"one more than {MAX_NUMBERS} names"
_NEVER_NUMBERS = ("final_info", "final_obs", "final_observation")  # of Gymnasium's vector environments


class InfoReader:
    """Reads numbers of one simulator.

    Example::

        reader = InfoReader(config.info)
        reader.add(totals, {"distance": 0.2})   # after each control step
        reader.write(chunk.infos[row], totals)  # after the chunk
    """

    def __init__(self, declared: Sequence[str] | None = None):
        """declared: the names to read, as `env.info`; None: all numbers that are found."""
        self._declared = None if declared is None else frozenset(declared)
        self._known: set[str] = set()
        self._told: set[str] = set()
        self._left_out: dict[str, str] = {}  # since the last call of `write`

    def add(self, totals: Totals, info: Mapping[str, Any]) -> None:
        """Add the numbers of one control step's info to the totals of its chunk."""
        if not info or self._declared == frozenset():
            return
        for name, value in _flat(info):
            if self._declared is None or name in self._declared:
                self._add(totals, name, value)

    def _add(self, totals: Totals, name: str, value: Any) -> None:
        number = number_of(value)
        if number is None or not math.isfinite(number):
            self._leave_out(name, f"{_NO_NUMBER}: {type(value).__name__}" if number is None else _NOT_FINITE)
        elif name in self._known:
            add_number(totals, name, number)
        elif len(self._known) < MAX_NUMBERS:
            self._known.add(name)
            add_number(totals, name, number)
        else:
            self._leave_out(name, _TOO_MANY)

    def _leave_out(self, name: str, why: str) -> None:
        if name not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(name)
            self._left_out[name] = why

    def write(self, info: dict[str, Any], totals: Totals) -> None:
        """Add the totals of a chunk to its info, and once what was left out."""
        if totals:
            info[NUMBERS] = totals
        if self._left_out:
            info[LEFT_OUT] = self._left_out
            self._left_out = {}


def row_info(info: Mapping[str, Any], row: int, num_envs: int) -> dict[str, Any]:
    """Return the info of one row of a Gymnasium vector environment; what its masks say is missing is left out."""
    found: dict[str, Any] = {}
    for name, values in info.items():
        is_mask = name.startswith("_") and name[1:] in info
        mask = info.get(f"_{name}")
        if is_mask or name in _NEVER_NUMBERS or (mask is not None and not mask[row]):
            continue
        if isinstance(values, Mapping):
            if below := row_info(values, row, num_envs):
                found[name] = below
        elif not isinstance(values, str) and _has_rows(values, num_envs):
            found[name] = values[row]
    return found


def _has_rows(values: Any, num_envs: int) -> bool:
    """Return whether an entry has a value for each row. An array without dimensions has a length that raises."""
    return hasattr(values, "__len__") and getattr(values, "shape", None) != () and len(values) == num_envs


def _flat(info: Mapping[str, Any], prefix: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Yield names and values; those of a mapping as "mapping/name"."""
    for key, value in info.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            yield from _flat(value, f"{name}/", depth + 1)
        elif len(name) <= _LONGEST_NAME and name.isprintable():
            yield name, value


def number_of(value: Any) -> float | None:
    """Return a number, which may be an array of one; None: it is none."""
    if isinstance(value, (float, int)):
        return float(value)
    if not isinstance(value, (np.generic, np.ndarray)) and not hasattr(value, "__array__"):
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # as of a tensor on a device
        return None
    return float(array.item()) if array.size == 1 and array.dtype.kind in "biuf" else None
