"""How long workers waited for data from other nodes, and how fast it came."""

from __future__ import annotations

from collections.abc import Mapping

from rlrun.watchdog.wait_graph import Incoming, Process

_REPORTED_S = 10.0  # shorter waits are not worth a line


class Transfers:
    """Follows the arguments that workers wait for, check by check.

    Example::

        transfers = Transfers()
        transfers.check(processes, 100.0)   # []: actor/1 waits for 1.3 MB
        transfers.check(processes, 141.0)   # they are there
        # ["actor/1@train: its input of 1.3 MB from env/0@sim came within 40 s: 0.26 Mbit/s"]
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[Incoming, float, float]] = {}  # all of it, since when, last seen

    def check(self, processes: Mapping[str, Process], now_s: float) -> list[str]:
        """Return a sentence on every transfer that took long and has ended since the last check."""
        ended = []
        for worker, (incoming, since_s, seen_s) in list(self._open.items()):
            process = processes.get(worker)
            if process is not None and process.incoming is not None:
                continue
            del self._open[worker]
            if process is not None and seen_s - since_s >= _REPORTED_S:
                rate = 8 * incoming.num_bytes / (seen_s - since_s) / 1e6
                what = f"{format_incoming(incoming, processes)} came within {seen_s - since_s:.0f} s: {rate:.2g} Mbit/s"
                ended.append(f"{worker}@{process.host}: its input of {what}")
        for worker, process in processes.items():
            if process.incoming is not None:
                incoming, since_s, _ = self._open.get(worker, (process.incoming, now_s, now_s))
                self._open[worker] = (incoming, since_s, now_s)
        return ended


def format_incoming(incoming: Incoming, processes: Mapping[str, Process]) -> str:
    """Return size and origin. Example: "1.3 MB from env/0@sim, env/1@sim"."""
    known = (f"@{processes[worker].host}" if worker in processes else "" for worker in incoming.producers)
    places = ", ".join(worker + host for worker, host in zip(incoming.producers, known, strict=True))
    return f"{incoming.num_bytes / 1e6:.1f} MB from {places}"
