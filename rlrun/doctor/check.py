"""One check of the doctor: what it looks at, where, and what fails it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlrun.doctor.finding import Finding
from rlrun.doctor.situation import Situation


@dataclass(frozen=True)
class Check:
    """One row of the table. `judge` yields faults; `measured` summarizes the measurement of a check that passed."""

    name: str
    looks_at: str
    where: str
    fails_when: str
    judge: Callable[[Situation], Iterator[Finding]]
    measured: Callable[[Situation], str]

    @property
    def row(self) -> str:
        """The anchor of the check in docs/troubleshooting.md. Example: "doctor-temp-disk"."""
        return f"doctor-{self.name.replace(' ', '-')}"
