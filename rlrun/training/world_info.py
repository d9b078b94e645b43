"""Notes, once each, what a world's `info` has that is no metric."""

from __future__ import annotations

from collections.abc import Iterable

from rlrun.edges.reports import Collected


class LeftOutInfo:
    """The names in the info of a run's world that were told."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def note(self, reports: Iterable[Collected]) -> str | None:
        """Return a sentence on the names that are new; None: there are none."""
        found = {name: why for report in reports for name, why in report.left_out.items() if name not in self._told}
        self._told |= set(found)
        if not found:
            return None
        words = ", ".join(f"{name} ({why})" for name, why in sorted(found.items()))
        return f"of the world's info, these are no metrics: {words}; env.info chooses some"
