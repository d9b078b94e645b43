"""The wait-for graph: from the workers that the driver waits for to the workers that block them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rlrun.data.messages import OpenWait

IDLE = "idle"
# Phases of rollout workers in which they run collectives with the actor ranks; actor ranks always do.
_SHARED_PHASES = {"form weight mesh", "receive weights"}


@dataclass(frozen=True)
class Incoming:
    """Arguments of an open request that have not reached the worker's node. Example: Incoming(("env/0",), 1_300_000)"""

    producers: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True)
class Process:
    """One worker as the board describes it.

    Example: Process("env/1", "sim-0", 19016, "simulate", False, 214.0)
    """

    worker: str
    host: str
    pid: int
    phase: str
    is_first: bool  # its first time in this phase
    silence_s: float  # since its last sign of progress
    waits: tuple[OpenWait, ...] = ()
    is_answering: bool = True
    status_age_s: float = 0.0  # since it last answered
    load: float = 0.0  # runnable processes per core of its host
    producers: tuple[str, ...] = ()  # workers that produced the arguments of its request
    incoming: Incoming | None = None  # what its request waits for; it is idle and answers nothing meanwhile

    @property
    def role(self) -> str:
        return self.worker.partition("/")[0]

    @property
    def is_collective(self) -> bool:
        """Whether its work needs the other ranks of its group at the same time."""
        return self.role == "actor" or self.phase in _SHARED_PHASES


@dataclass(frozen=True)
class Leaf:
    """A worker that blocks others and waits for no worker itself.

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

    Both ends wait then, and no process works.
    """
    process = processes.get(leaf.worker)
    if process is None or not process.is_answering:
        return None
    if leaf.is_cycle:  # one of the two has sent a request that the policy has not received
        receiver, sender = sorted(leaf.chain[-2:], key=lambda worker: not worker.startswith("rollout/"))
        senders: tuple[str, ...] = (sender,)
    elif process.phase == IDLE:
        senders, receiver = process.producers or leaf.chain[-2:-1], leaf.worker
    else:
        return None
    known = tuple(worker for worker in senders if worker in processes)
    if not known or receiver not in processes:
        return None
    here, there = processes[known[0]].host, processes[receiver].host
    return Transit(known, receiver, here, there) if here != there else None


def leaves(pending: Collection[str], processes: Mapping[str, Process]) -> list[Leaf]:
    """Return every leaf of the graph that is reachable from `pending`, each once, with its shortest chain."""
    found: dict[str, Leaf] = {}
    chains: list[tuple[str, ...]] = [(worker,) for worker in sorted(pending)]
    visited = set(pending)
    while chains:
        chain = chains.pop(0)
        nexts = waits_for(chain[-1], pending, processes)
        if not nexts:
            found.setdefault(chain[-1], Leaf(chain[-1], chain))
        for worker in nexts:
            if worker in chain:
                found.setdefault(chain[-1], Leaf(chain[-1], chain, is_cycle=True))
            elif worker not in visited:
                visited.add(worker)
                chains.append((*chain, worker))
    ends = list(found.values())
    true_ends = [leaf for leaf in ends if not leaf.is_cycle]
    return true_ends or ends  # cycles count only if there is no true end


def waits_for(worker: str, pending: Collection[str], processes: Mapping[str, Process]) -> list[str]:
    """Return the workers that a worker waits for now; empty if it works or does not answer."""
    process = processes.get(worker)
    if process is None or not process.is_answering:
        return []
    if process.incoming is not None:
        return []
    on = [other for wait in process.waits for other in wait.on if other != worker]
    if not on and process.phase != IDLE and process.is_collective:  # it meets its peers before it gets far
        on = [peer.worker for peer in processes.values() if peer.role == process.role and peer.incoming is not None]
    if on or process.phase != IDLE:
        return list(dict.fromkeys(on))
    # Idle with an open request: the request has not begun, because other workers still produce its arguments.
    busy = [other for other in sorted(pending) if other != worker and other in processes]
    return [other for other in busy if not _is_idle(processes[other])]


def _is_idle(process: Process) -> bool:
    return process.is_answering and process.phase == IDLE and not any(wait.on for wait in process.waits)
