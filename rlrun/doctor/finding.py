"""The result of a check: status, place, cause, fix, measured value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    ok = "ok"
    warning = "warning"  # the run works, but may be slow or fragile
    failed = "failed"  # the run would stop, hang or compute wrong results


@dataclass(frozen=True)
class Finding:
    """One row of the doctor's table.

    Example: Finding("temp disk", Status.failed, "sim-0", "/tmp is 97 % full: Ray creates no objects …",
    "rm -rf /tmp/ray/session_*", "1.2 GB free of 40.0 GB")
    """

    check: str
    status: Status
    where: str  # a node, "a -> b" for a link, or "" for all nodes
    cause: str
    fix: str = ""  # a command or a setting to paste; "" if there is nothing to do
    value: str = ""  # the measured value
    is_late: bool = False  # a trial did not end in time, and nothing else is wrong: an overloaded machine may be why

    def __str__(self) -> str:
        place = f" on {self.where}" if self.where else ""
        return f"{self.check}{place}: {self.cause}"


def failures(findings: list[Finding]) -> list[Finding]:
    """Return the findings that stop a run."""
    return [finding for finding in findings if finding.status is Status.failed]
