"""Lists of names and sentences for messages, cut to what a person reads."""

from __future__ import annotations

from collections.abc import Sequence


def first_of(words: Sequence[str], limit: int, separator: str = ", ", noun: str = "") -> str:
    """Return the first `limit` words and the number of the others. noun: what the others are called; "": nothing.

    Example: first_of(["a", "b", "c"], 1) == "a and 2 more"; first_of(["a", "b"], 1, "; ") == "a; and 1 more"
    """
    shown = separator.join(words[:limit])
    left = len(words) - limit
    if left <= 0:
        return shown
    joint = " " if separator == ", " else separator
    return f"{shown}{joint}and {left} more{noun and f' {noun}'}"
