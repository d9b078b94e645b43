"""One row of the table: what is expected, how it is measured, and what was seen."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from benchmarks.gpu.machine import Machine, is_installed


class Outcome(Enum):
    as_expected = "as expected"
    off = "OFF"
    left_out = "left out"
    not_reached = "not reached"
    not_pretended = "not on pretended CUDA"


class Pretence(Enum):
    """What pretended CUDA can do with a row."""

    shows = "shows"  # the numbers are judged as on a card
    runs = "runs"  # the code runs to its end; its numbers say nothing of a card
    cannot = "cannot"  # the code needs a card


class LeftOut(Exception):
    """Raised by a measurement that does not apply here; its text is the reason."""


@dataclass(frozen=True)
class Seen:
    """What a measurement found. Example: Seen("0.012", is_right=True)."""

    text: str
    is_right: bool


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    name: str
    expected: str
    seen: str
    outcome: str  # value of an Outcome


@dataclass(frozen=True)
class Row:
    """A measurement with its expectation; made by the decorator `row`."""

    name: str
    expected: str
    measure: Callable[[Machine], Seen]
    needs: tuple[str, ...]  # packages
    num_cards: int
    pretence: Pretence

    def result(self, machine: Machine) -> Result:
        """Measure. An error is a result, too: its traceback goes to stderr."""
        outcome, seen = self._outcome(machine)
        return Result(self.name, self.expected, seen, outcome.value)

    def _outcome(self, machine: Machine) -> tuple[Outcome, str]:
        missing = [package for package in self.needs if not is_installed(package)]
        if missing:
            return Outcome.left_out, f"{', '.join(missing)} not installed"
        if machine.is_pretended and self.pretence is Pretence.cannot:
            return Outcome.not_pretended, ""
        if machine.num_cards < self.num_cards:
            return Outcome.left_out, f"needs {self.num_cards} cards, has {machine.num_cards}"
        try:
            seen = self.measure(machine)
        except LeftOut as reason:
            return Outcome.left_out, str(reason)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return Outcome.off, f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]
        if machine.is_pretended and self.pretence is Pretence.runs:
            return Outcome.not_pretended, f"ran: {seen.text}"
        return Outcome.as_expected if seen.is_right else Outcome.off, seen.text


def row(
    name: str,
    expected: str,
    needs: tuple[str, ...] = (),
    num_cards: int = 1,
    pretence: Pretence = Pretence.runs,
) -> Callable[[Callable[[Machine], Seen]], Row]:
    """Make a row of a function.

    Example::

        @row("sum of ones", "3")
        def ones(machine: Machine) -> Seen: ...
    """
    return lambda measure: Row(name, expected, measure, needs, num_cards, pretence)
