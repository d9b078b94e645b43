"""Finds bugs of a simulator: equal faults soon after one another, which no restart can mend."""

from __future__ import annotations

import traceback

from rlrun.system.errors import RunError

NUM_EQUAL = 3  # equal faults that show a bug
SOON = 50  # chunks of each row between two equal faults; rarer ones are infra faults, such as crashes
MAX_LINES = 24  # of the traceback in the message; the log has all of it
ROW = "simulator-bug"


class RepeatedFaults:
    """Counts equal faults. Completed chunks between them make them forgotten."""

    def __init__(self, num_rows: int, needed_first: int = NUM_EQUAL):
        """needed_first: equal faults that show a bug as long as no row has completed a chunk."""
        self._num_rows, self._needed_first = num_rows, needed_first
        self._num_completed = 0  # chunks of all rows
        self._seen: dict[str, list[int]] = {}  # by signature: the chunks completed at each fault that counts

    def completed(self, num_rows: int) -> None:
        """Note that so many rows have completed a chunk."""
        self._num_completed += num_rows

    def add(self, fault: Exception) -> None:
        """Count a fault. Raises RunError, with the traceback, if it is one too many of its like."""
        signature, now = _signature(fault), self._num_completed
        before = self._seen.get(signature, [])
        is_soon = bool(before) and now - before[-1] <= SOON * self._num_rows
        self._seen[signature] = counted = [*before, now] if is_soon else [now]
        if len(counted) >= (NUM_EQUAL if now else self._needed_first):
            raise _bug(fault, len(counted), now - counted[0])


def _signature(fault: Exception) -> str:
    """Return what equal faults share: type, message (without its place in an episode), and the line that raised."""
    frames = traceback.extract_tb(fault.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(fault).__name__}: {str(fault).partition(' at control step ')[0]} {place}"


def _bug(fault: Exception, count: int, num_chunks: int) -> RunError:
    text = "".join(traceback.format_exception(fault)).rstrip()
    return RunError(
        f"The simulator breaks in the same way again and again: {count} equal faults within {num_chunks} chunks.",
        key="env.simulator",
        cause="\n".join(text.splitlines()[-MAX_LINES:]),
        remedy="Repair the simulator; `python -m rlrun.check_simulator` with the same arguments repeats the fault.",
        row="simulator-bug",
    )
