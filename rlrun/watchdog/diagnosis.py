"""Derives one culprit, one sentence and one action from the wait-for graph and the facts of the nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rlrun.watchdog.problems import Problem, problem
from rlrun.watchdog.wait_graph import IDLE, Leaf, Process, Transit, transit


@dataclass(frozen=True)
class ProcessFacts:
    """What a node observes of one of its processes from outside.

    Example: ProcessFacts("T", "step_chunk (rlrun/envs/embedded/mujoco_env.py:120)")
    """

    state: str = "?"  # from /proc: R, S, D (waits for a disk), T (stopped), Z; "gone"
    where: str = ""  # innermost frames of its working thread
    holds_gil: bool = False
    is_in_collective: bool = False


@dataclass(frozen=True)
class NodeFacts:
    """Shortages of a node, in words. Example: NodeFacts("sim-0", full_disks=("/data/spill 100 % full",))."""

    node: str
    full_disks: tuple[str, ...] = ()
    memory: str = ""  # "": there is enough
    oom_kills: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stall:
    """A wait of the driver that takes too long, and everything known about the processes."""

    subject: str
    pending: Collection[str]
    late: Sequence[Leaf]  # leaves of the graph that exceed their budget
    processes: Mapping[str, Process]
    facts: Mapping[str, ProcessFacts] = field(default_factory=dict)  # by worker
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)  # by host


@dataclass(frozen=True)
class Diagnosis:
    """The worker that blocks the run, the problem, and what to do."""

    culprit: str  # "role/rank"
    problem: Problem
    sentence: str
    action: str


def diagnose(stall: Stall) -> Diagnosis:
    """Find the culprit among the late leaves.

    A stopped process comes before an unresponsive one, then a busy one, then one that waits in a collective.
    """
    leaf = min(stall.late, key=lambda leaf: _order(leaf, stall))
    process = stall.processes.get(leaf.worker)
    facts = stall.facts.get(leaf.worker, ProcessFacts())
    node = stall.nodes.get(process.host, NodeFacts(process.host)) if process else NodeFacts("")
    row = problem(_problem_name(leaf, process, facts, node, stall))
    culprit = leaf.worker
    if row.name == "rank-left" and process is not None:  # the ranks in the collective wait correctly
        culprit = finished_peers(process, stall.pending, stall.processes)[0]
        process, facts = stall.processes[culprit], ProcessFacts()
    parts = [_waiting(leaf, stall), _doing(culprit, process, facts, row)]
    data = transit(leaf, stall.processes)
    if data is not None:
        parts.append(f"it comes from {format_workers(data.senders)}@{data.from_host} to {data.to_host}")
    for each in _nodes_involved(node, data, stall):
        shortage = "; ".join([*each.full_disks, *([each.memory] if each.memory else []), *each.oom_kills])
        parts += [f"{each.node}: {shortage}"] if shortage else []
    return Diagnosis(culprit, row, "; ".join(parts), row.fix)


def _nodes_involved(node: NodeFacts, data: Transit | None, stall: Stall) -> list[NodeFacts]:
    """Return the culprit's node, and the node that sends the data it waits for."""
    return [node, *([stall.nodes[data.from_host]] if data is not None and data.from_host in stall.nodes else [])]


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


def _problem_name(leaf: Leaf, process: Process | None, facts: ProcessFacts, node: NodeFacts, stall: Stall) -> str:
    if process is None:
        return "never-started"
    if facts.state in ("Z", "gone"):
        return "process-ended"
    if facts.state in ("T", "t"):
        return "stopped"
    data = transit(leaf, stall.processes)
    is_full = any(each.full_disks for each in _nodes_involved(node, data, stall))
    if is_full and (process.phase == IDLE or facts.state == "D"):
        return "disk-full"
    if facts.holds_gil and not process.is_answering:
        return "gil-held"
    if not process.is_answering:
        return "unresponsive"
    if data is not None:
        return "on-its-way"
    if leaf.is_cycle:
        return "cycle"
    if process.phase == IDLE:
        return "not-delivered"
    if facts.is_in_collective:
        return _collective_problem(process, stall)
    return "disk-full" if node.full_disks else "no-progress"


def _collective_problem(process: Process, stall: Stall) -> str:
    """Return which ranks are at fault: the minority; if it is one of two, the rank that has left the collective."""
    peers = [other for other in stall.processes.values() if other.role == process.role]
    num_left = len(finished_peers(process, stall.pending, stall.processes))
    if not num_left:
        return "collective"
    return "rank-left" if 2 * num_left <= len(peers) else "rank-alone"


def finished_peers(process: Process, pending: Collection[str], processes: Mapping[str, Process]) -> list[str]:
    """Return the peers of a process that have finished their request while it has not."""
    peers = [other for other in processes.values() if other.role == process.role]
    return [p.worker for p in peers if p.worker not in pending and p.phase == IDLE]


def _waiting(leaf: Leaf, stall: Stall) -> str:
    words = [f"driver waits for {stall.subject} from {format_workers(stall.pending)}"]
    for worker, following in zip(leaf.chain, leaf.chain[1:], strict=False):
        waits = stall.processes[worker].waits
        what = next((wait.what for wait in waits if following in wait.on), "what it is to work on")
        words.append(f"{format_workers([worker])} waits for {what} from {format_workers([following])}")
    return "; ".join(words)


def _doing(worker: str, process: Process | None, facts: ProcessFacts, row: Problem) -> str:
    if process is None:
        return f"{format_workers([worker])} has not answered since it was to be started"
    phase = [process.phase] if process.phase != IDLE else []
    where = ", in " + ": ".join([*phase, *([facts.where] if facts.where else [])]) if phase or facts.where else ""
    name = f"{format_workers([worker])}@{process.host} (pid {process.pid})"
    return f"{name} {row.says} and has not moved for {process.silence_s:.0f} s{where}"


def format_workers(workers: Collection[str]) -> str:
    """Return worker names with ranges of ranks.

    Example: format_workers(["actor/0", "actor/1", "actor/3", "env/2"]) == "actor[0-1,3], env[2]".
    """
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
