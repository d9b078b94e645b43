"""Which worker delays a wait that goes on but takes far longer than usual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rlrun.watchdog.wait_graph import IDLE, Leaf, Process, transit

MIN_REPORT_S = 20.0  # a wait is reported as slow after this time and twice its usual time


class Slowness:
    """Counts, check by check, which leaves of the wait-for graph delay one wait.

    Example::

        slowness = Slowness("trajectories of step 3", usual_s=4.0)
        slowness.check(leaves, processes, waited_s=21.0)
        # "trajectories of step 3: 21 s so far, usual 4 s; 80 % of it: the way between sim-0 and train-0"
    """

    def __init__(self, subject: str, usual_s: float | None):
        """usual_s: usual time of the driver's phase; None: unknown, nothing is reported."""
        self._subject, self._usual_s = subject, usual_s
        self._seen: Counter[str] = Counter()
        self._is_reported = False

    def check(self, leaves: Iterable[Leaf], processes: Mapping[str, Process], waited_s: float) -> str | None:
        """Count what delays the wait now. Returns a sentence, once, when the wait is late; else None."""
        self._seen.update({_what(leaf, processes) for leaf in leaves})
        if self._is_reported or self._usual_s is None or waited_s < max(MIN_REPORT_S, 2 * self._usual_s):
            return None
        self._is_reported = True
        what, count = self._seen.most_common(1)[0]
        share = 100 * count / sum(self._seen.values())
        return f"{self._subject}: {waited_s:.0f} s so far, usual {self._usual_s:.2g} s; {share:.0f} % of it: {what}"


def _what(leaf: Leaf, processes: Mapping[str, Process]) -> str:
    way = transit(leaf, processes)
    if way is not None:
        hosts = sorted((way.from_host, way.to_host))
        return f"the way between {hosts[0]} and {hosts[1]}"
    process = processes.get(leaf.worker)
    if process is None:
        return f"{leaf.worker} is not there"
    if not process.is_answering:
        state = "does not answer"
    else:
        state = "has not begun" if process.phase == IDLE else f"in {process.phase}"
    return f"{leaf.worker}@{process.host} {state}"
