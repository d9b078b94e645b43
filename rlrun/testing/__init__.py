"""Contracts of simulators, policies and algorithms, as checks for the tests of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Breach:
    """One broken rule. Example: Breach("gradients", "no gradient reaches log_std")."""

    rule: str
    what: str


def broken(rules: Sequence[Callable[[Any], Iterator[str]]], contract: object) -> list[Breach]:
    """Return the breaches of all rules; a rule that raises counts as broken."""
    breaches: list[Breach] = []
    for rule in rules:
        try:
            breaches += [Breach(rule.__name__.strip("_"), what) for what in rule(contract)]
        except Exception as error:  # code from outside rlrun may raise anything
            breaches.append(Breach(rule.__name__.strip("_"), f"raised {type(error).__name__}: {error}"))
    return breaches
