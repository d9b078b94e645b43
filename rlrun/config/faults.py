"""Faults that several checks of a configuration find, and their types; the specs of kinds use them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rlrun.config.schema import RunConfig
from rlrun.system.errors import RunError

Faults = Iterator[RunError]
Check = Callable[[RunConfig], Faults]


def not_multiple(key: str, value: int, of_key: str, of: int) -> Faults:
    """Yield a fault unless `value` is a multiple of `of`."""
    if value % of:
        down = value // of * of
        choices = f"{down} or {down + of}" if down else f"{of}"
        yield RunError(
            f"{key} ({value}) is no multiple of {of_key} ({of}).",
            key=key,
            value=value,
            cause=f"{value} leaves a remainder of {value % of}.",
            remedy=f"Take {choices}, or another {of_key}.",
        )


def wrong_names(key: str, names: list[str], known: Sequence[str]) -> Faults:
    """Yield a fault unless a list has at least one of the known names, and each at most once."""
    wrong = [name for name in names if name not in known]
    if not names or wrong or len(set(names)) < len(names):
        what = f"'{wrong[0]}' is unknown" if wrong else "a name stands twice" if names else "it is empty"
        yield RunError(
            f"'{key}': {what}.",
            key=key,
            value=list(names),
            cause=f"Known: {', '.join(known)}.",
            remedy="Name each once.",
        )


def no_effect(key: str, value: object, because: str, remedy: str) -> RunError:
    """Return the fault of a key that is set but has no effect."""
    return RunError(f"'{key}' would have no effect.", key=key, value=value, cause=f"{because}.", remedy=remedy)


def nearest_divisor(number: int, near: int) -> int:
    """Return the divisor of `number` that is closest to `near`."""
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    return min(divisors, key=lambda divisor: abs(divisor - near))
