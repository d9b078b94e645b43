"""Finds bugs of a simulator: the same fault in the first chunk of several rows, which no restart can mend."""

from __future__ import annotations

import traceback
from collections import Counter

from rlrun.system.errors import RunError

NUM_EQUAL = 3  # equal faults that show a bug; two of a single row or of two rows
MAX_LINES = 24  # of the traceback in the message; the log has all of it
ROW = "simulator-bug"


class FirstFaults:
    """Counts equal faults of rows that have not completed a chunk yet."""

    def __init__(self, num_rows: int):
        self._needed = min(NUM_EQUAL, max(2, num_rows))
        self._counts: Counter[str] = Counter()
        self._has_completed: set[int] = set()

    def completed(self, row: int) -> None:
        """Note that a row has completed a chunk: its later faults are infra faults."""
        self._has_completed.add(row)

    def add(self, row: int, fault: Exception | str) -> None:
        """Count a fault. Raises RunError, with the traceback, if it is one too many of its like."""
        if row in self._has_completed:
            return
        signature = _signature(fault)
        self._counts[signature] += 1
        if self._counts[signature] >= self._needed:
            raise _bug(fault, self._needed)


def _signature(fault: Exception | str) -> str:
    """Return what equal faults share: type, message and the line that raised."""
    if isinstance(fault, str):
        return fault
    frames = traceback.extract_tb(fault.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(fault).__name__}: {fault} {place}"


def _bug(fault: Exception | str, count: int) -> RunError:
    text = fault if isinstance(fault, str) else "".join(traceback.format_exception(fault)).rstrip()
    return RunError(
        f"The simulator breaks in the same way in its first steps: {count} equal faults.",
        key="env.simulator",
        cause="\n".join(text.splitlines()[-MAX_LINES:]),
        remedy="Repair the simulator; `python -m rlrun.check_simulator` with the same arguments repeats the fault.",
        row="simulator-bug",
    )
