"""How long a worker went without a sign of progress, and samples of it by phase."""

from __future__ import annotations

import math
import time

FIRST = ", first"  # a phase that a process goes through for the first time: imports, compilation, allocation
INTERVAL_S = 2.0  # of a phase there is one sample at most so often; whoever looks once a second sees them all


class Silence:
    """Ends with every sign of progress. The caller holds a lock around every call.

    Example::

        silence = Silence()
        silence.end("act")      # 3 s after it was made
        silence.finish("act")   # from now on "act" is no first time
        silence.samples()       # {"act, first": (1, 3.0)}
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._open: dict[str, tuple[float, float]] = {}  # phase -> when its last sample was taken, the longest since
        self._samples: dict[str, tuple[int, float]] = {}
        self._finished: set[str] = set()

    @property
    def seconds(self) -> float:
        """Length of the silence that goes on."""
        return time.monotonic() - self._since

    def end(self, phase: str | None) -> None:
        """A sign of progress. phase: what the worker did until now; None: nothing, or it waited for others."""
        now = time.monotonic()
        if phase is not None:
            self._add(phase if phase in self._finished else phase + FIRST, now - self._since, now)
        self._since = now

    def _add(self, key: str, seconds: float, now: float) -> None:
        """What is in no sample yet is shorter than INTERVAL_S."""
        taken, longest = self._open.get(key, (-math.inf, 0.0))
        longest = max(longest, seconds)
        if now - taken < INTERVAL_S:
            self._open[key] = (taken, longest)
            return
        count, _ = self._samples.get(key, (0, 0.0))
        self._samples[key] = (count + 1, longest)
        self._open[key] = (now, 0.0)

    def finish(self, phase: str) -> None:
        """The phase is over for the first time, or again."""
        self._finished.add(phase)

    def is_first(self, phase: str) -> bool:
        """Whether this process has not been through the phase yet."""
        return phase not in self._finished

    def samples(self) -> dict[str, tuple[int, float]]:
        """Phase -> how many samples were taken, and the last one: the longest silence in it since the one before.

        First times apart. Example: {"load, first": (1, 4.1), "simulate": (12, 0.2)}.
        """
        return dict(self._samples)
