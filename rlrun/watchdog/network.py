"""The network to other nodes, as a run sees it: the one voice for all that notice a trouble of it.

Paths that lose packets, links that break, nodes without answers, data on its way and connections that were lost are
often one trouble. The first report is shown; later ones on the same nodes within a minute are in the log only.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from rlrun.system.telemetry import mark_alive
from rlrun.watchdog.probes import PathMonitor

logger = logging.getLogger(__name__)

WINDOW_S = 60.0
_PERIOD_S = 1.0
_MAX_THREADS = 32
_CLOSE_TIMEOUT_S = 5.0
_PATH_S = 3.0  # duration of a wait after which the paths to other nodes are probed
_FLAPS = 3  # failures of a link in a minute that are reported although the run continues


class LinkHistory:
    """Probes of the links to other nodes in the last minute, once a second. `open` starts its thread, `close` ends it.

    A link that fails repeatedly for some seconds breaks the connections of healthy workers, and is often up again when
    a single probe checks it.

    Example::

        links = LinkHistory({"the link between train and sim": lambda: is_reached("10.77.0.2", 7002)})
        links.open()
        links.sentences()     # ["the link between train and sim broke 4 times in 60 s (13 of 60 tries failed)"]
    """

    def __init__(self, tries: Mapping[str, Callable[[], bool]], clock: Callable[[], float] = time.monotonic):
        """tries: probes by the name of the link, which return whether its other end answers, in two seconds at most."""
        self._tries = dict(tries)
        self._clock = clock
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
            for history, is_up in zip(self._found.values(), results, strict=True):
                history.append((now, is_up))
                while history[0][0] < now - WINDOW_S:
                    history.popleft()

    def sentences(self, least: int = 1) -> list[str]:
        """Return a sentence on each link that broke `least` times or more in the last minute."""
        with self._lock:
            histories = {link: [is_up for _, is_up in history] for link, history in self._found.items()}
        return [_sentence(link, ups) for link, ups in histories.items() if _breaks(ups) >= least]

    def wait_up(self, limit_s: float) -> None:
        """Wait until the last probe of every link succeeded, at most `limit_s`."""
        end = self._clock() + limit_s
        while self._is_down() and self._clock() < end:
            mark_alive()
            time.sleep(_PERIOD_S / 2)

    def _is_down(self) -> bool:
        with self._lock:
            return any(history and not history[-1][1] for history in self._found.values())

    def _run(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            self.update()


def _breaks(ups: list[bool]) -> int:
    return sum(before and not after for before, after in zip([True, *ups], ups, strict=False))


def _sentence(link: str, ups: list[bool]) -> str:
    times = "once" if _breaks(ups) == 1 else f"{_breaks(ups)} times"
    return f"{link} broke {times} in {WINDOW_S:.0f} s ({ups.count(False)} of {len(ups)} tries failed)"


class Network:
    """Links and paths to the other nodes of a run.

    Example::

        network.tell("env/0@sim: its input of 1.3 MB is on its way for 10 s")      # told
        network.tell("node sim has not answered for 9 s")                         # the same trouble, not told
    """

    def __init__(self, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        """note: receives lines for the console."""
        self._note = note
        self._clock = clock
        self._nodes: Collection[str] = ()
        self._told: dict[str, float] = {}  # other node -> when a trouble of it was last noticed
        self._paths_now = self._links_now = ""  # their troubles
        self.links = LinkHistory({})
        self.paths: PathMonitor | None = None
        self.num_noticed = 0

    def connect(self, nodes: Collection[str], links: LinkHistory, paths: PathMonitor | None) -> None:
        """Watch the links and paths to these other nodes from now on."""
        self.links.close()
        self._nodes = nodes
        self.links = links
        self.paths = paths
        self.links.open()

    def tell(self, sentence: str) -> None:
        """Tell of a trouble, unless one of all nodes that the sentence names was noticed within a minute."""
        now = self._clock()
        about = self._named(sentence)
        is_known = bool(about) and all(now - self._told.get(node, float("-inf")) < WINDOW_S for node in about)
        self._told |= dict.fromkeys(about, now)
        self.num_noticed += 1
        logger.info("network: %s", sentence)
        if not is_known:
            self._note(sentence)

    def check(self, waited_s: float, limit_s: float) -> bool:
        """Return whether the network may be the cause of silent workers. limit_s: how long data is waited for."""
        self._links_now = self._changed(self._links_now, self.links.sentences(_FLAPS), "no worker is blamed")
        if self.paths is None or waited_s < _PATH_S:
            return False
        before = self._paths_now
        faults = self.paths.check()
        self._paths_now = self._changed(before, faults, f"no worker is blamed, waiting up to {limit_s:.0f} s")
        if before and not faults:
            self._note("the network carries packets of all sizes in time again")
        return self.paths.excuses_silence

    @property
    def has_faulty_paths(self) -> bool:
        """Whether a path lost or delayed packets when it was last probed."""
        return bool(self._paths_now)

    def doubts(self, name: str, path_fault: str | None) -> None:
        """Tell that a lost worker may not be the cause, if its link broke, or its path loses packets now."""
        faults = [*self.links.sentences(), *([path_fault] if path_fault is not None else [])]
        if faults:
            self.tell(f"{name} may not be the cause: {'; '.join(faults)}")

    def _changed(self, before: str, faults: list[str], consequence: str) -> str:
        """Tell of faults if there were none before. Returns those of now."""
        now = "; ".join(faults)
        if now and not before:
            self.tell(f"{now}; {consequence}")
        self._told |= dict.fromkeys(self._named(now), self._clock())  # it goes on
        return now

    def _named(self, text: str) -> list[str]:
        return [node for node in self._nodes if re.search(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", text)]
