"""History of the links to other nodes in the last minute, probed once a second by a thread.

A link that fails repeatedly for some seconds breaks the connections of healthy workers, and is often up again when a
single probe checks it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from rlrun.observability.telemetry import mark_alive

WINDOW_S = 60.0
_PERIOD_S = 1.0
_MAX_THREADS = 32
_CLOSE_TIMEOUT_S = 5.0


class LinkHistory:
    """Probes of the last minute, by link. `open` starts the thread, `close` ends it.

    Example::

        links = LinkHistory({"the link between train and sim": lambda: is_reached("10.77.0.2", 7002)})
        links.open()
        links.sentences()     # ["the link between train and sim broke 4 times in 60 s (13 of 60 tries failed)"]
    """

    def __init__(self, tries: Mapping[str, Callable[[], bool]], clock: Callable[[], float] = time.monotonic):
        """tries: probes by the name of the link, which return whether its other end answers, in two seconds at most."""
        self._tries, self._clock = dict(tries), clock
        self._found: dict[str, deque[tuple[float, bool]]] = {link: deque() for link in tries}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="link history", daemon=True)

    def open(self) -> None:
        """Start probing the links once a second."""
        if self._tries:
            self._thread.start()

    def close(self) -> None:
        """Stop probing. Safe to call twice."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_CLOSE_TIMEOUT_S)

    def update(self) -> None:
        """Probe every link once, all at the same time."""
        with ThreadPoolExecutor(min(_MAX_THREADS, len(self._tries))) as pool:
            results = list(pool.map(lambda attempt: attempt(), self._tries.values()))
        now = self._clock()
        with self._lock:
            for found, is_up in zip(self._found.values(), results, strict=True):
                found.append((now, is_up))
                while found[0][0] < now - WINDOW_S:
                    found.popleft()

    def sentences(self, least: int = 1) -> list[str]:
        """Return a sentence on each link that broke `least` times or more in the last minute."""
        with self._lock:
            histories = {link: [is_up for _, is_up in found] for link, found in self._found.items()}
        return [_sentence(link, ups) for link, ups in histories.items() if _breaks(ups) >= least]

    def wait_up(self, limit_s: float) -> None:
        """Wait until the last probe of every link succeeded, at most `limit_s`."""
        end = self._clock() + limit_s
        while self._is_down() and self._clock() < end:
            mark_alive()
            time.sleep(_PERIOD_S / 2)

    def _is_down(self) -> bool:
        with self._lock:
            return any(found and not found[-1][1] for found in self._found.values())

    def _run(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            self.update()


def _breaks(ups: list[bool]) -> int:
    return sum(before and not after for before, after in zip([True, *ups], ups, strict=False))


def _sentence(link: str, ups: list[bool]) -> str:
    times = "once" if _breaks(ups) == 1 else f"{_breaks(ups)} times"
    return f"{link} broke {times} in {WINDOW_S:.0f} s ({ups.count(False)} of {len(ups)} tries failed)"
