"""Table of known problems, and the diagnosis of a stall: one culprit, one sentence and one action.

docs/troubleshooting.md shows the table. A diagnosis uses the wait-for graph and the facts that the nodes report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rlrun.watchdog.wait_graph import IDLE, Leaf, Process, Transit, transit

_NAMES_BY_STATE = {"Z": "process-ended", "gone": "process-ended", "T": "stopped", "t": "stopped"}  # of a process


@dataclass(frozen=True)
class Problem:
    """Row of the troubleshooting table. `predicate`: of the alarm's sentence."""

    name: str  # anchor of the row
    symptom: str
    predicate: str
    cause: str
    fix: str


ALARMS = (
    Problem(
        "stopped",
        "a worker uses no CPU, and none of its threads runs",
        "is stopped (state T)",
        "a debugger, `kill -STOP`, or Ctrl-Z in a shell that started its node",
        "find who stopped it; `kill -CONT PID` lets it go on, or start the run again: it resumes",
    ),
    Problem(
        "gil-held",
        "a worker computes or waits in C, and none of its Python threads runs",
        "holds Python's lock in C code",
        "an extension that computes, or waits for a device or file, without releasing the GIL",
        "read its native stack in the archive; report it to the extension, or raise watchdog.floor_s if it only takes "
        "long",
    ),
    Problem(
        "unresponsive",
        "a worker's process exists, but does not answer",
        "does not answer",
        "its node is overloaded or swaps, its network is cut, or an extension holds Python's lock",
        "look at its node: load, memory, link; then at its stack in the archive",
    ),
    Problem(
        "no-progress",
        "all GPUs at 0 W, memory held, the step's bar does not move",
        "answers",
        "the call that it makes does not return: a simulator, a file system, a lock",
        "read its stack in the archive; if the simulator is only slow, raise watchdog.floor_s",
    ),
    Problem(
        "never-started",
        "the run stays at `start workers`",
        "never started",
        "Ray could not start its process: a package that is missing on that node, no memory, an interpreter that does "
        "not exist",
        "read Ray's log of its node in the archive; `python -m rlrun.doctor` compares the nodes",
    ),
    Problem(
        "process-ended",
        "a worker is gone",
        "has ended",
        "killed by the kernel (out of memory), by a person, or by a fault in C code",
        "read its log in the run folder and the kernel's log on its node: `dmesg -T | grep -i oom`",
    ),
    Problem(
        "collective",
        "all ranks are in the same collective, and none of them returns",
        "waits in a collective",
        "the ranks cannot reach one another any more, or one of them is in another collective",
        "compare the groups of stacks in the archive; `python -m rlrun.doctor` tries the links",
    ),
    Problem(
        "rank-left",
        "a rank is done, and others wait for it in a collective",
        "has left a collective that others wait in",
        "the ranks disagree on the number of steps: an unequal number of rows, or an exception that one of them caught",
        "compare the counters of the ranks in board.json of the archive; please report it",
    ),
    Problem(
        "rank-alone",
        "one rank waits in a collective, and most of the others are done",
        "waits in a collective that its peers have left",
        "it takes more steps than the others, or has not noticed that they gave up",
        "compare the counters of the ranks in board.json of the archive; please report it",
    ),
    Problem(
        "cycle",
        "workers wait for each other in a ring",
        "waits for workers that wait for it",
        "a fault in rlrun",
        "please report it with the archive",
    ),
    Problem(
        "not-delivered",
        "workers are idle, although requests were sent to them",
        "was asked, has not begun",
        "Ray does not deliver what the request takes: the object store or the spill disk is full, or a node is gone",
        "look at disks.txt and ray.txt in the archive; free space, or set placement.nodes.<group>.spill_dirs",
    ),
    Problem(
        "on-its-way",
        "both ends wait: one has sent, the other has not received",
        "waits for data on its way between nodes",
        "the link is slow, loses packets, or carries them in one direction only",
        "`python -m rlrun.doctor` measures the links, `ip -s link` counts their errors; the run waits up to "
        "cluster.step_deadline_s for data that may still come",
    ),
    Problem(
        "disk-full",
        "`/tmp/ray … over 95% full`, `Object creation will fail`, or no progress without any error",
        "waits for a disk",
        "Ray's object store is full and there is no room to spill: a spilled object cannot be fetched then either, "
        "and Ray reports nothing",
        "free space, or set placement.nodes.<group>.spill_dirs to a larger disk; `rlrun.plan` says how much is needed",
    ),
    Problem(
        "disk-hangs",
        "nothing moves, and a process that writes to the run folder is in state D",
        "does not answer",
        "its server is gone (NFS), its file system is frozen, or its device is failing or far too slow",
        "`ls` the folder from another shell, `dmesg -T | tail` on its node and its server; the run goes on by itself "
        "when the disk responds again, else start the run again with output_dir on another disk",
    ),
    Problem(
        "driver-asleep",
        "the driver's threads run, but no step begins or ends, and no worker is late",
        "answers, but its main thread is blocked",
        "a call in the driver itself does not return: a disk, a metrics server, a debugger, a lock",
        "read its stack in the archive, which names the call",
    ),
    Problem(
        "thread-died",
        "a background thread has stopped",
        "lost a background thread",
        "an exception in the thread; the first line of the cause names it",
        "the traceback is in the worker's log; please report it",
    ),
)

_BY_NAME = {row.name: row for row in ALARMS}


def problem(name: str) -> Problem:
    """Return a row by its name. Raises KeyError."""
    return _BY_NAME[name]


@dataclass(frozen=True)
class ProcessFacts:
    """State of a process, as its node observes it from outside.

    Example: ProcessFacts("T", "step_chunk (rlrun/envs/embedded/mujoco_env.py:120)")
    """

    state: str = "?"  # from /proc: R, S, D (waits for a disk), T (stopped), Z; "gone"
    where: str = ""  # innermost frames of its working thread
    holds_gil: bool = False
    is_in_collective: bool = False


@dataclass(frozen=True)
class NodeFacts:
    """Shortages of a node as texts. Example: NodeFacts("sim-0", full_disks=("/data/spill 100 % full",))."""

    node: str
    full_disks: tuple[str, ...] = ()
    memory: str = ""  # "": enough is free
    oom_kills: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stall:
    """A wait of the driver that takes too long, with all facts about the processes."""

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
    leaf = min(stall.late, key=lambda leaf: _priority(leaf, stall))
    process = stall.processes.get(leaf.worker)
    facts = stall.facts.get(leaf.worker, ProcessFacts())
    node = stall.nodes.get(process.host, NodeFacts(process.host)) if process else NodeFacts("")
    row = problem(_problem_name(leaf, process, facts, node, stall))
    culprit = leaf.worker
    if row.name == "rank-left" and process is not None:  # the ranks in the collective wait correctly
        culprit = finished_peers(process, stall.pending, stall.processes)[0]
        process = stall.processes[culprit]
        facts = ProcessFacts()
    parts = [_wait_chain_text(leaf, stall), _culprit_text(culprit, process, facts, row)]
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


def _priority(leaf: Leaf, stall: Stall) -> tuple[int, float]:
    process = stall.processes.get(leaf.worker)
    facts = stall.facts.get(leaf.worker, ProcessFacts())
    if process is None or facts.state in _NAMES_BY_STATE:
        weight = 0
    elif not process.is_answering:
        weight = 1
    elif process.phase == IDLE or facts.is_in_collective:
        weight = 3
    else:
        weight = 2
    return weight, -(process.silence_s if process else 0.0)


def _problem_name(leaf: Leaf, process: Process | None, facts: ProcessFacts, node: NodeFacts, stall: Stall) -> str:
    """Return the name of the row of `ALARMS` that fits the evidence."""
    if process is None:
        return "never-started"
    if facts.state in _NAMES_BY_STATE:
        return _NAMES_BY_STATE[facts.state]
    data = transit(leaf, stall.processes)
    is_full = any(each.full_disks for each in _nodes_involved(node, data, stall))
    if is_full and (process.phase == IDLE or facts.state == "D"):
        return "disk-full"
    if not process.is_answering:
        return "gil-held" if facts.holds_gil else "unresponsive"
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
    """Return the problem of a collective: the minority of ranks is at fault; of two, the rank that has left it."""
    peers = [other for other in stall.processes.values() if other.role == process.role]
    num_left = len(finished_peers(process, stall.pending, stall.processes))
    if not num_left:
        return "collective"
    return "rank-left" if 2 * num_left <= len(peers) else "rank-alone"


def finished_peers(process: Process, pending: Collection[str], processes: Mapping[str, Process]) -> list[str]:
    """Return the peers of a process that have finished their request while it has not."""
    peers = [other for other in processes.values() if other.role == process.role]
    return [p.worker for p in peers if p.worker not in pending and p.phase == IDLE]


def _wait_chain_text(leaf: Leaf, stall: Stall) -> str:
    words = [f"driver waits for {stall.subject} from {format_workers(stall.pending)}"]
    for worker, following in zip(leaf.chain, leaf.chain[1:], strict=False):
        waits = stall.processes[worker].waits
        what = next((wait.what for wait in waits if following in wait.on), "what it is to work on")
        words.append(f"{format_workers([worker])} waits for {what} from {format_workers([following])}")
    return "; ".join(words)


def _culprit_text(worker: str, process: Process | None, facts: ProcessFacts, row: Problem) -> str:
    if process is None:
        return f"{format_workers([worker])} has not answered since it was to be started"
    phase = [process.phase] if process.phase != IDLE else []
    where = ", in " + ": ".join([*phase, *([facts.where] if facts.where else [])]) if phase or facts.where else ""
    name = f"{format_workers([worker])}@{process.host} (pid {process.pid})"
    return f"{name} {row.predicate} and has not moved for {process.silence_s:.0f} s{where}"


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
    return ", ".join([f"{role}[{_ranges(sorted(set(numbers)))}]" for role, numbers in sorted(ranks.items())] + others)


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
