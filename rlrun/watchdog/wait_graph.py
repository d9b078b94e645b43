"""Wait-for graph, from the workers that the driver waits for to those that block them, and the board of statuses.

The board has the last status of every worker, from which the graph is built; transfers are arguments of requests on
their way between nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from rlrun.system.status import OpenWait, WorkerStatus

IDLE = "idle"
CALLBACK = "callback "  # begins the phases in which the driver calls a user's code
# Phases of rollout workers with collectives that include the actor ranks; an actor's phases always have collectives.
_SHARED_PHASES = {"form weight mesh", "receive weights"}
UNRESPONSIVE_S = 5.0  # time without a status, after at least two requests
_MIN_REPORTED_S = 10.0  # shorter transfers are not reported


@dataclass(frozen=True)
class Incoming:
    """Arguments of an open request that have not reached the worker's node. Example: Incoming(("env/0",), 1_300_000)"""

    producers: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True)
class Process:
    """State of one worker, from its last status.

    Example: Process("env/1", "sim-0", 19016, "simulate", False, 214.0)
    """

    worker: str
    host: str
    pid: int
    phase: str
    is_first: bool  # it is in this phase for the first time
    silence_s: float  # since its last sign of progress
    waits: tuple[OpenWait, ...] = ()
    is_answering: bool = True
    status_age_s: float = 0.0  # since it last answered
    load: float = 0.0  # runnable processes per core of its host
    producers: tuple[str, ...] = ()  # workers that produced the arguments of its request
    incoming: Incoming | None = None  # arguments that its request waits for; it is idle and does not answer meanwhile

    @property
    def role(self) -> str:
        return self.worker.partition("/")[0]

    @property
    def is_collective(self) -> bool:
        """Whether its phase has collectives with the other ranks of its group."""
        return self.role == "actor" or self.phase in _SHARED_PHASES


@dataclass(frozen=True)
class Leaf:
    """Leaf of the graph: a worker that blocks others and waits for no worker itself.

    Example: Leaf("env/1", ("env/0", "rollout/0", "env/1")): the driver waits for env/0, which waits for rollout/0, …
    """

    worker: str
    chain: tuple[str, ...]  # from a worker that the driver waits for to `worker`
    is_cycle: bool = False  # the last worker of the chain waits for an earlier one


@dataclass(frozen=True)
class Transit:
    """Data on its way between nodes. Example: Transit(("env/0",), "rollout/0", "sim-0", "train-0")."""

    senders: tuple[str, ...]
    receiver: str
    from_host: str
    to_host: str


def transit(leaf: Leaf, processes: Mapping[str, Process]) -> Transit | None:
    """Return the data that a leaf waits for if it is on its way from another node; else None.

    Both ends are then waiting, and no process works.
    """
    process = processes.get(leaf.worker)
    if process is None or not process.is_answering:
        return None
    if leaf.is_cycle:  # one of the two has sent a request that the policy has not received
        receiver, sender = sorted(leaf.chain[-2:], key=lambda worker: not worker.startswith("rollout/"))
        senders: tuple[str, ...] = (sender,)
    elif process.phase == IDLE:
        senders = process.producers or leaf.chain[-2:-1]
        receiver = leaf.worker
    else:
        return None
    known = tuple(worker for worker in senders if worker in processes)
    if not known or receiver not in processes:
        return None
    here = processes[known[0]].host
    there = processes[receiver].host
    return Transit(known, receiver, here, there) if here != there else None


def leaves(pending: Collection[str], processes: Mapping[str, Process]) -> list[Leaf]:
    """Return every leaf of the graph that is reachable from `pending`, each once, with its shortest chain."""
    ends_of_chains: dict[str, Leaf] = {}
    chains: list[tuple[str, ...]] = [(worker,) for worker in sorted(pending)]
    visited = set(pending)
    while chains:
        chain = chains.pop(0)
        nexts = waits_for(chain[-1], pending, processes)
        if not nexts:
            ends_of_chains.setdefault(chain[-1], Leaf(chain[-1], chain))
        for worker in nexts:
            if worker in chain:
                ends_of_chains.setdefault(chain[-1], Leaf(chain[-1], chain, is_cycle=True))
            elif worker not in visited:
                visited.add(worker)
                chains.append((*chain, worker))
    ends = list(ends_of_chains.values())
    true_ends = [leaf for leaf in ends if not leaf.is_cycle]
    return true_ends or ends  # cycles count only if there is no true end


def waits_for(worker: str, pending: Collection[str], processes: Mapping[str, Process]) -> list[str]:
    """Return the workers that a worker waits for now; empty if it works or does not answer."""
    process = processes.get(worker)
    if process is None or not process.is_answering or process.incoming is not None:
        return []
    on = [other for wait in process.waits for other in wait.on if other != worker]
    if process.phase != IDLE:
        if not on and process.is_collective:  # a collective will wait for its peers
            on = [peer.worker for peer in processes.values() if peer.role == process.role and peer.incoming is not None]
        return list(dict.fromkeys(on))
    return list(dict.fromkeys(on)) or _producing(worker, pending, processes)


def _producing(worker: str, pending: Collection[str], processes: Mapping[str, Process]) -> list[str]:
    """Return the workers that still produce the arguments of an idle worker's request, which thus has not started."""
    others = [other for other in sorted(pending) if other != worker and other in processes]
    return [other for other in others if not _is_idle(processes[other])]


def _is_idle(process: Process) -> bool:
    return process.is_answering and process.phase == IDLE and not any(wait.on for wait in process.waits)


class Board:
    """The last status of every worker; thread-safe. Each round of polling is stored with `put`.

    Example::

        board = Board()
        board.put(processes.statuses())
        board.processes()["env/1"].silence_s
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """seconds: the clock, which may exclude pauses of the driver."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._last: dict[str, tuple[WorkerStatus, float]] = {}  # with the time of its arrival
        self._misses: dict[str, int] = {}
        self._ended: dict[str, set[tuple[str, int]]] = {}  # worker -> host and pid of its processes that were ended
        self._producers: dict[str, tuple[str, ...]] = {}
        self._incoming: Mapping[str, Incoming] = {}
        self._asked = 0.0
        self.num_forgotten = 0

    def put(self, statuses: Iterable[WorkerStatus]) -> None:
        """Store the answers of one round of polling. Workers without a status have missed the round.

        The status of a process that was ended may still arrive, and is not that of its successor.
        """
        now = self._seconds()
        with self._lock:
            self._asked = now
            self._misses = {worker: count + 1 for worker, count in self._misses.items()}
            for status in statuses:
                if (status.host, status.pid) in self._ended.get(status.worker, ()):
                    continue
                self._last[status.worker] = (status, now)
                self._misses[status.worker] = 0

    def expect(self, worker: str, producers: tuple[str, ...]) -> None:
        """Record that a request was sent to a worker, whose arguments come from `producers`."""
        with self._lock:
            self._producers[worker] = producers

    def expect_data(self, incoming: Mapping[str, Incoming]) -> None:
        """Record which workers wait for arguments that have not reached their nodes; all others do not.

        Such a worker does not answer, since Ray delivers requests in order.
        """
        now = self._seconds()
        with self._lock:
            for worker in self._incoming.keys() - incoming.keys():
                if worker in self._last:  # it could not answer before, so that its silence begins now
                    self._last[worker] = (replace(self._last[worker][0], silence_s=0.0), now)
                    self._misses[worker] = 0
            self._incoming = dict(incoming)

    @property
    def age_s(self) -> float:
        """Seconds since the last round."""
        with self._lock:
            return self._seconds() - self._asked

    def forget(self, worker: str) -> None:
        """Forget a worker whose process is ended; a successor with another pid may appear under its name."""
        with self._lock:
            self.num_forgotten += 1
            status, _ = self._last.pop(worker, (None, 0.0))
            if status is not None:
                self._ended.setdefault(worker, set()).add((status.host, status.pid))
            self._misses.pop(worker, None)

    def statuses(self) -> dict[str, WorkerStatus]:
        """Return the last status of every worker."""
        with self._lock:
            return {worker: status for worker, (status, _) in self._last.items()}

    def processes(self) -> dict[str, Process]:
        """Return the current state of every worker that has ever answered."""
        now = self._seconds()
        with self._lock:
            return {worker: self._process(status, now - came) for worker, (status, came) in self._last.items()}

    def _process(self, status: WorkerStatus, age_s: float) -> Process:
        """Return the state of a worker `age_s` after its last status; the lock is held."""
        is_answering = not (self._misses[status.worker] >= 2 and age_s > UNRESPONSIVE_S)
        incoming = self._incoming.get(status.worker)
        if is_answering and status.phase != IDLE:  # it is still busy with an earlier request
            incoming = None
        return Process(
            status.worker,
            status.host,
            status.pid,
            IDLE if incoming else status.phase,
            status.is_first,
            status.silence_s + age_s,
            () if incoming else status.waits,
            is_answering or incoming is not None,
            age_s,
            status.load,
            incoming.producers if incoming else self._producers.get(status.worker, ()),
            incoming,
        )


class Transfers:
    """Durations of the transfers of arguments that workers wait for, from check to check.

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
            if process is not None and seen_s - since_s >= _MIN_REPORTED_S:
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
