"""Who holds a wait up that goes on, but takes far longer than usual: the leaves of the graph, counted look by look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rlrun.watchdog.wait_graph import IDLE, Leaf, Process, transit

TELL_S = 20.0  # and twice what is usual


class Slowness:
    """Of one wait.

    Example::

        slowness = Slowness("trajectories of step 3", usual_s=4.0)
        slowness.look(leaves, processes, waited_s=21.0)
        # "trajectories of step 3: 21 s so far, usual 4 s; 80 % of it: the way between sim-0 and train-0"
    """

    def __init__(self, subject: str, usual_s: float | None):
        """usual_s: how long the driver's phase takes; None: never seen, and nothing is told."""
        self._subject, self._usual_s = subject, usual_s
        self._seen: Counter[str] = Counter()
        self._is_told = False

    def look(self, leaves: Iterable[Leaf], processes: Mapping[str, Process], waited_s: float) -> str | None:
        """Count who holds it up now; a sentence, once, when it is late."""
        self._seen.update({_what(leaf, processes) for leaf in leaves})
        if self._is_told or self._usual_s is None or waited_s < max(TELL_S, 2 * self._usual_s):
            return None
        self._is_told = True
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
