"""From the wait-for graph and what the nodes found to one culprit, one sentence, one action."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rlrun.watchdog.troubles import Trouble, trouble
from rlrun.watchdog.wait_graph import IDLE, Leaf, Process, Transit, transit


@dataclass(frozen=True)
class ProcessFacts:
    """What a node sees of one of its processes, without its help.

    Example: ProcessFacts("T", "step_chunk (rlrun/envs/embedded/mujoco_env.py:120)")
    """

    state: str = "?"  # of /proc: R, S, D (waits for a disk), T (stopped), Z; "gone"
    where: str = ""  # innermost frame of the main thread that is not the library's
    holds_gil: bool = False
    is_in_collective: bool = False


@dataclass(frozen=True)
class NodeFacts:
    """What is short on a node, in words. Example: NodeFacts("sim-0", full_disks=("/data/spill 100 % full",))."""

    node: str
    full_disks: tuple[str, ...] = ()
    memory: str = ""  # "" where there is enough
    oom_kills: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stall:
    """What the driver waits for, and what is known about all processes."""

    subject: str
    pending: Collection[str]
    late: Sequence[Leaf]  # leaves of the graph that are over their budget
    processes: Mapping[str, Process]
    facts: Mapping[str, ProcessFacts] = field(default_factory=dict)  # by worker
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)  # by host


@dataclass(frozen=True)
class Diagnosis:
    """Who holds the run up, why, and what to do."""

    culprit: str  # "role/rank"
    trouble: Trouble
    sentence: str
    action: str


def diagnose(stall: Stall) -> Diagnosis:
    """The culprit among the late leaves: stopped before mute before busy before those that wait for a collective."""
    leaf = min(stall.late, key=lambda leaf: _order(leaf, stall))
    process = stall.processes.get(leaf.worker)
    facts = stall.facts.get(leaf.worker, ProcessFacts())
    node = stall.nodes.get(process.host, NodeFacts(process.host)) if process else NodeFacts("")
    kind = trouble(_kind(leaf, process, facts, node, stall))
    culprit = leaf.worker
    if kind.name == "rank-left" and process is not None:  # those that wait are as they should be
        culprit = left_behind(process, stall.pending, stall.processes)[0]
        process, facts = stall.processes[culprit], ProcessFacts()
    parts = [_waiting(leaf, stall), _doing(culprit, process, facts, kind)]
    way = transit(leaf, stall.processes)
    if way is not None:
        parts.append(f"it comes from {folded(way.senders)}@{way.from_host} to {way.to_host}")
    for each in _along(node, way, stall):
        shortage = "; ".join([*each.full_disks, *([each.memory] if each.memory else []), *each.oom_kills])
        parts += [f"{each.node}: {shortage}"] if shortage else []
    return Diagnosis(culprit, kind, "; ".join(parts), kind.fix)


def _along(node: NodeFacts, way: Transit | None, stall: Stall) -> list[NodeFacts]:
    """The node of the culprit, and the one that what it waits for comes from."""
    return [node, *([stall.nodes[way.from_host]] if way is not None and way.from_host in stall.nodes else [])]


def _order(leaf: Leaf, stall: Stall) -> tuple[int, float]:
    process, facts = stall.processes.get(leaf.worker), stall.facts.get(leaf.worker, ProcessFacts())
    if process is None or facts.state in ("T", "t", "Z", "gone"):
        weight = 0
    elif not process.is_answering:
        weight = 1
    elif process.phase == IDLE or facts.is_in_collective:
        weight = 3
    else:
        weight = 2
    return weight, -(process.silence_s if process else 0.0)


def _kind(leaf: Leaf, process: Process | None, facts: ProcessFacts, node: NodeFacts, stall: Stall) -> str:
    if process is None:
        return "never-started"
    if facts.state in ("Z", "gone"):
        return "process-ended"
    if facts.state in ("T", "t"):
        return "stopped"
    way = transit(leaf, stall.processes)
    is_full = any(each.full_disks for each in _along(node, way, stall))
    if is_full and (process.phase == IDLE or facts.state == "D"):
        return "disk-full"
    if facts.holds_gil and not process.is_answering:
        return "gil-held"
    if not process.is_answering:
        return "mute"
    if way is not None:
        return "on-its-way"
    if leaf.is_cycle:
        return "cycle"
    if process.phase == IDLE:
        return "not-delivered"
    if facts.is_in_collective:
        return _collective_kind(process, stall)
    return "disk-full" if node.full_disks else "no-progress"


def _collective_kind(process: Process, stall: Stall) -> str:
    """Where the ranks disagree, the fewer are the odd ones; one of two: the one that the other waits for."""
    peers = [other for other in stall.processes.values() if other.role == process.role]
    num_left = len(left_behind(process, stall.pending, stall.processes))
    if not num_left:
        return "collective"
    return "rank-left" if 2 * num_left <= len(peers) else "rank-alone"


def left_behind(process: Process, pending: Collection[str], processes: Mapping[str, Process]) -> list[str]:
    """Peers that are done with their request, though this process is still in it."""
    peers = [other for other in processes.values() if other.role == process.role]
    return [p.worker for p in peers if p.worker not in pending and p.phase == IDLE]


def _waiting(leaf: Leaf, stall: Stall) -> str:
    words = [f"driver waits for {stall.subject} from {folded(stall.pending)}"]
    for worker, following in zip(leaf.chain, leaf.chain[1:], strict=False):
        waits = stall.processes[worker].waits
        what = next((wait.what for wait in waits if following in wait.on), "what it is to work on")
        words.append(f"{folded([worker])} waits for {what} from {folded([following])}")
    return "; ".join(words)


def _doing(worker: str, process: Process | None, facts: ProcessFacts, kind: Trouble) -> str:
    if process is None:
        return f"{folded([worker])} has not answered since it was to be started"
    phase = [process.phase] if process.phase != IDLE else []
    where = ", in " + ": ".join([*phase, *([facts.where] if facts.where else [])]) if phase or facts.where else ""
    name = f"{folded([worker])}@{process.host} (pid {process.pid})"
    return f"{name} {kind.says} and has not moved for {process.silence_s:.0f} s{where}"


def folded(workers: Collection[str]) -> str:
    """Example: folded(["actor/0", "actor/1", "actor/3", "env/2"]) == "actor[0-1,3], env[2]"."""
    ranks: dict[str, list[int]] = {}
    others = []
    for worker in workers:
        role, _, rank = worker.partition("/")
        if rank.isdigit():
            ranks.setdefault(role, []).append(int(rank))
        else:
            others.append(worker)
    return ", ".join([f"{role}[{_ranges(sorted(set(found)))}]" for role, found in sorted(ranks.items())] + others)


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
