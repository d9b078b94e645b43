"""The wait-for graph: from those that the driver waits for to those that hold everyone up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rlrun.data.messages import OpenWait

IDLE = "idle"
# Phases of rollout workers in which they and the actor ranks need one another; actor ranks always do.
_SHARED_PHASES = {"form weight mesh", "receive weights"}


@dataclass(frozen=True)
class Process:
    """One worker as the board knows it.

    Example: Process("env/1", "sim-0", 19016, "simulate", False, 214.0)
    """

    worker: str
    host: str
    pid: int
    phase: str
    is_first: bool  # goes through this phase for the first time
    silence_s: float  # since its last sign of progress
    waits: tuple[OpenWait, ...] = ()
    is_answering: bool = True
    mute_s: float = 0.0  # since it told something
    load: float = 0.0  # of its host, per core
    makers: tuple[str, ...] = ()  # workers that made what it was asked to work on

    @property
    def role(self) -> str:
        return self.worker.partition("/")[0]

    @property
    def is_collective(self) -> bool:
        """Whether what it does needs the others of its group at the same time."""
        return self.role == "actor" or self.phase in _SHARED_PHASES


@dataclass(frozen=True)
class Leaf:
    """Somebody who holds others up, and waits for nobody.

    Example: Leaf("env/1", ("env/0", "rollout/0", "env/1")): the driver waits for env/0, that for rollout/0, …
    """

    worker: str
    chain: tuple[str, ...]  # from a worker that the driver waits for; ends with `worker`
    is_cycle: bool = False  # the last of the chain waits for one before it


@dataclass(frozen=True)
class Transit:
    """Something that is on its way between nodes. Example: Transit(("env/0",), "rollout/0", "sim-0", "train-0")."""

    senders: tuple[str, ...]
    receiver: str
    from_host: str
    to_host: str


def transit(leaf: Leaf, processes: Mapping[str, Process]) -> Transit | None:
    """What holds a leaf up, where that is neither a process nor on its own node: both ends wait, nobody works."""
    process = processes.get(leaf.worker)
    if process is None or not process.is_answering:
        return None
    if leaf.is_cycle:  # one of the two has asked, and the policy has not heard it
        receiver, sender = sorted(leaf.chain[-2:], key=lambda worker: not worker.startswith("rollout/"))
        senders: tuple[str, ...] = (sender,)
    elif process.phase == IDLE:
        senders, receiver = process.makers or leaf.chain[-2:-1], leaf.worker
    else:
        return None
    known = tuple(worker for worker in senders if worker in processes)
    if not known or receiver not in processes:
        return None
    here, there = processes[known[0]].host, processes[receiver].host
    return Transit(known, receiver, here, there) if here != there else None


def leaves(pending: Collection[str], processes: Mapping[str, Process]) -> list[Leaf]:
    """Every end of the graph that can be reached from `pending`, each once, by its shortest chain."""
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
    return true_ends or ends  # a cycle is to blame only where everyone is in one


def waits_for(worker: str, pending: Collection[str], processes: Mapping[str, Process]) -> list[str]:
    """On whom a worker waits now; nobody, where it works or does not answer."""
    process = processes.get(worker)
    if process is None or not process.is_answering:
        return []
    on = [other for wait in process.waits for other in wait.on if other != worker]
    if on or process.phase != IDLE:
        return list(dict.fromkeys(on))
    # Asked but idle: its request has not begun, because what it takes is still being made by the others.
    busy = [other for other in sorted(pending) if other != worker and other in processes]
    return [other for other in busy if not _is_idle(processes[other])]


def _is_idle(process: Process) -> bool:
    return process.is_answering and process.phase == IDLE and not any(wait.on for wait in process.waits)
