"""Every exit status of every command, and its meaning; docs/reference/exit_statuses.md has this table."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Statuses that schedulers and scripts may rely on; `meaning` is the text in the documents."""

    meaning: str

    def __new__(cls, status: int, meaning: str = "") -> ExitStatus:
        member = int.__new__(cls, status)
        member._value_ = status
        member.meaning = meaning
        return member

    ok = 0, "done"
    unexpected = (
        1,
        "an error that rlrun does not expect: the traceback is printed, then whose code raised it",
    )
    bad_config = 2, "the configuration was refused; nothing was started"
    placement = 3, "the plan cannot be met by the machines; the shortfall is printed"
    doctor = 4, "the doctor found a fault that would stop the run"
    bad_input = 5, "a checkpoint or dataset is missing, corrupted or of other shapes"
    storage = 6, "the run folder cannot be written, for example a full disk; the last checkpoint is whole"
    worker_lost = 7, "a worker, node or simulator was lost more often than the limits allow"
    stalled = 8, "a wait passed its deadline; the culprit and the evidence archive are named"
    diverged = 9, "learning produced only non-finite gradients"
    differs = 10, "a replay had other results than the recorded run"
    preempted = (
        75,
        "stopped by a signal after a checkpoint, or at once by a scheduler's second signal; the last lines have the "
        "command that resumes the run",
    )
    interrupted = 130, "stopped at once, without a checkpoint, by a second Ctrl-C, or by one before the first step"


def markdown_table() -> str:
    """Return the table for docs/reference/exit_statuses.md."""
    rows = [f"| {status.value} | `{status.name}` | {status.meaning} |" for status in ExitStatus]
    return "\n".join(["| status | name | meaning |", "|---|---|---|", *rows])
