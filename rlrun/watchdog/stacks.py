"""Stacks of other processes, and dumps of PyTorch's flight recorder.

Stacks are read with py-spy, else by the signal handler that every worker registers. A flight recorder's dump has the
last collectives of a rank; a comparison of the ranks' dumps tells which rank does not take part in a collective. torch
writes dumps as pickles, which are read without running code.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import signal
import subprocess
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

STACK_SIGNAL = signal.SIGUSR2  # a worker that receives it writes the stacks of its threads into its log
_PY_SPY_TIMEOUT_S = 5.0
_HANDLER_WAIT_S = 1.0  # for a process to write its stacks
_REQUEST_METHODS = ("run", "run_episodes", "act")  # methods of rlrun/cluster/worker_actor.py in which a request runs
_CHILD_PROGRAM = "rlrun/pipe/bootstrap.py"
_NUM_INNERMOST = 5  # innermost frames that are searched for a collective
FLIGHT_RECORDER_FOLDER = "flight_recorder"  # of the run
_DUMP_FILE = re.compile(
    rf".*/{FLIGHT_RECORDER_FOLDER}/(?P<role>\w+)-(?P<number>\d+)_(?P<rank>\d+)\.(?P<format>json|hex)"
)
_NUM_FRAMES = 3  # innermost frames of each collective in the text of a dump
# collectives to which every rank gives tensors of the same size
_EQUAL_SIZE_COLLECTIVES = {"all_reduce", "broadcast", "all_gather", "all_gather_base", "reduce_scatter_base"}


@dataclass(frozen=True)
class Frame:
    """One call. Example: Frame("step_chunk", "/src/rlrun/envs/embedded/mujoco_env.py", 120)."""

    name: str
    path: str
    line: int

    def __str__(self) -> str:
        parts = Path(self.path).parts
        start = len(parts) - parts[::-1].index("rlrun") - 1 if "rlrun" in parts else max(0, len(parts) - 2)
        return f"{self.name} ({'/'.join(parts[start:])}:{self.line})"


@dataclass(frozen=True)
class Stack:
    """Stack of the thread that runs a request, innermost frame first, and the dump of all threads as text."""

    frames: tuple[Frame, ...]
    holds_gil: bool
    text: str

    @property
    def where(self) -> str:
        """The innermost frame, and the innermost frame of rlrun if it is another one."""
        if not self.frames:
            return ""
        innermost = next((frame for frame in self.frames if "/rlrun/" in frame.path), None)
        if innermost is None or innermost == self.frames[0]:
            return str(self.frames[0])
        return f"{self.frames[0]} called by {innermost}"

    @property
    def is_in_collective(self) -> bool:
        """Whether the thread is in a collective of torch.distributed."""
        return any("/torch/distributed/" in frame.path for frame in self.frames[:_NUM_INNERMOST])


def dump_process(pid: int, log: Path | None) -> Stack:
    """Read the stacks of a process, also of a stopped one. Raises OSError with the reason if that fails.

    log: the file that the process's own handler writes to; None: it has no handler.
    """
    spy = Path(sysconfig.get_path("scripts")) / "py-spy"
    try:
        done = subprocess.run(
            [str(spy), "dump", "--json", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_PY_SPY_TIMEOUT_S,
            check=True,
        )
        return read_dump(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        words = getattr(error, "stderr", None) or str(error)
        return Stack((), False, _stacks_by_handler(pid, log, f"py-spy: {words.strip()}"))


def dump_worker(pid: int, log: Path | None) -> Stack:
    """Read the stacks of a worker and of its child processes (simulators, inference engine).

    If the worker waits for a child, the frames of the child are returned.
    """
    stack = dump_process(pid, log)
    for simulator in child_pids(pid):
        try:
            inner = dump_process(simulator, log)
        except OSError as error:
            inner = Stack((), False, str(error))
        frames = inner.frames if any("/rlrun/pipe/" in frame.path for frame in stack.frames) else stack.frames
        text = f"{stack.text}\n--- its own process {simulator}\n{inner.text}"
        stack = Stack(frames or stack.frames, stack.holds_gil, text)
    return stack


def child_pids(pid: int) -> list[int]:
    """Return the pids of a worker's child processes that run its simulators or its inference engine."""
    try:
        children = psutil.Process(pid).children()
        return [child.pid for child in children if any(word.endswith(_CHILD_PROGRAM) for word in child.cmdline())]
    except psutil.Error:
        return []


def read_dump(text: str) -> Stack:
    """Parse the output of `py-spy dump --json`. Raises ValueError."""
    threads = json.loads(text)
    shown: list[str] = []
    stacks: list[tuple[Frame, ...]] = []
    for thread in threads:
        if not thread["frames"]:
            continue  # a thread of a library without Python frames
        frames = tuple(Frame(f["name"], f["filename"], f["line"]) for f in thread["frames"])
        marks = " (holds the GIL)" * thread["owns_gil"] + " (active)" * thread["active"]
        shown.append(
            "\n".join([f"thread {thread['thread_name'] or thread['thread_id']}{marks}"] + [f"  {f}" for f in frames])
        )
        stacks.append(frames)
    if not stacks:
        raise ValueError("no thread has a Python frame")
    working = max(reversed(stacks), key=_request_priority)  # py-spy lists the main thread last
    return Stack(working, any(thread["owns_gil"] for thread in threads), "\n".join(shown))


def _request_priority(frames: tuple[Frame, ...]) -> int:
    """Return a number that is highest for the thread that runs a request, and 0 for others."""
    hosts = [frame.name.rpartition(".")[2] for frame in frames if frame.path.endswith("rlrun/cluster/worker_actor.py")]
    return max(
        (len(_REQUEST_METHODS) - _REQUEST_METHODS.index(name) for name in hosts if name in _REQUEST_METHODS), default=0
    )


def _stacks_by_handler(pid: int, log: Path | None, why: str) -> str:
    """Return the stacks that the process itself writes on a signal, where ptrace is denied. Raises OSError.

    A process without a handler gets no signal, since the signal would end it.
    """
    if log is None or not log.exists() or not _handles_signal(pid):
        raise OSError(why)
    before = log.stat().st_size
    os.kill(pid, STACK_SIGNAL)
    time.sleep(_HANDLER_WAIT_S)
    with log.open("rb") as stream:
        stream.seek(before)
        text = stream.read().decode(errors="replace")
    if not text:
        raise OSError(f"{why}; it did not answer signal {STACK_SIGNAL.name} either")
    return text


def _handles_signal(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (STACK_SIGNAL - 1) & 1)


def group_by_stack(stacks: Mapping[str, Stack]) -> list[tuple[list[str], Stack]]:
    """Group workers with equal stacks, smallest group first, so that an outlier comes first."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for worker, stack in sorted(stacks.items()):
        groups.setdefault(tuple(f"{frame.name} {frame.path}" for frame in stack.frames), []).append(worker)
    return [(members, stacks[members[0]]) for members in sorted(groups.values(), key=lambda found: (len(found), found))]


@dataclass(frozen=True)
class Collective:
    """One collective as one rank recorded it. Example: Collective(1412, "all_gather", ((4096,),), False)."""

    number: int  # counts the collectives of its group
    name: str
    sizes: tuple[tuple[int, ...], ...]  # of its inputs
    is_finished: bool


@dataclass(frozen=True)
class _Group:
    """A process group: its members, and the recorded collectives of those with a dump, by rank and number."""

    members: frozenset[int]
    recorded: Mapping[int, Mapping[int, Collective]]


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler of containers, numbers and strings only; a dump has nothing else, and other objects may run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def dump_to_json(content: bytes) -> str:
    """Return a dump as JSON, with the innermost frames only. Raises ValueError if `content` is not a dump."""
    try:
        dump_process = _PlainUnpickler(io.BytesIO(content)).load()
        entries = [entry | {"frames": entry.get("frames", [])[:_NUM_FRAMES]} for entry in dump_process["entries"]]
        text = json.dumps(dump_process | {"entries": entries})
        _groups({0: json.loads(text)})
    except Exception as error:  # corrupted bytes may raise any exception
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return text


def describe_collectives(files: Mapping[str, str]) -> list[str]:
    """Return a sentence on the collective in which each set of ranks with dumps waits.

    files: the files of an archive by name; a dump is `<host>/flight_recorder/<role>-<rank of the role>_<rank>.json`,
    or `….hex` if it cannot be read. The actor workers form one set, each rollout worker with its engine another.
    Example: ["actor: rank 3 never entered all_gather #1412; the others wait in it"]
    """
    dumps: dict[str, dict[int, Any]] = {}
    lines = []
    for name, text in sorted(files.items()):
        file = _DUMP_FILE.fullmatch(name)
        if file is None:
            continue
        worker = f"{file['role']}/{file['number']}"
        if file["format"] == "hex":
            lines.append(f"{worker}: the dump of its flight recorder cannot be read")
            continue
        ranks = "actor" if file["role"] == "actor" else worker
        dumps.setdefault(ranks, {})[int(file["rank"])] = json.loads(text)
    return [
        f"{ranks}: {_describe_stuck_group(_groups(dumps_of_ranks))}" for ranks, dumps_of_ranks in dumps.items()
    ] + lines


def _groups(dumps: Mapping[int, Any]) -> list[_Group]:
    """Return the process groups in the dumps of some ranks."""
    recorded_by_group: dict[tuple[str, frozenset[int]], dict[int, dict[int, Collective]]] = {}
    for rank, dump_process in sorted(dumps.items()):
        for entry in dump_process["entries"]:
            if entry["is_p2p"]:
                continue
            (name, kind) = entry["process_group"]
            known = dump_process["pg_config"].get(entry["process_group"][0])
            members = frozenset(json.loads(known["ranks"])) if known else frozenset()
            if not members and kind == "default_pg":  # Gloo records it under another name
                members = frozenset(dumps)
            recorded = recorded_by_group.setdefault(
                (name, members), {member: {} for member in sorted(members & dumps.keys())}
            )
            each = _collective(entry)
            recorded.setdefault(rank, {}).setdefault(each.number, each)  # the first of a coalesced set
    return [_Group(members or frozenset(recorded), recorded) for (_, members), recorded in recorded_by_group.items()]


def _collective(entry: Mapping[str, Any]) -> Collective:
    library, _, name = entry["profiling_name"].rpartition(":")
    # NCCL retires aborted collectives too; Gloo records the end only as retired
    is_finished = entry["state"] == "completed" or (library == "gloo" and entry["retired"])
    sizes = tuple(tuple(size) for size in entry["input_sizes"])
    return Collective(entry["collective_seq_id"], name.lstrip("_"), sizes, is_finished)


def _describe_stuck_group(groups: Iterable[_Group]) -> str:
    """Return the most specific sentence of all groups: a missing rank first, a collective that does not end last."""
    kinds: tuple[Callable[[_Group, int], str], ...] = (
        _missing_ranks,
        _different_collectives,
        _different_sizes,
        _missing_dumps,
        _all_entered,
    )
    stuck = [(group, number) for group in groups if (number := _first_unfinished(group)) is not None]
    for kind in kinds:
        for group, number in stuck:
            if sentence := kind(group, number):
                return sentence
    return "no rank waits in a collective"


def _first_unfinished(group: _Group) -> int | None:
    """Return the number of the first collective that a rank has entered and not left."""
    return min(
        (c.number for collectives in group.recorded.values() for c in collectives.values() if not c.is_finished),
        default=None,
    )


def _missing_ranks(group: _Group, number: int) -> str:
    """Describe ranks that have not entered the collective; "" if every rank with a dump has."""
    absent = [rank for rank, collectives in group.recorded.items() if max(collectives, default=-1) < number]
    return f"{_ranks(absent)} never entered {_collective_name(group, number)}; the others wait in it" if absent else ""


def _different_collectives(group: _Group, number: int) -> str:
    """Describe ranks that entered another collective; "" if all entered the same one."""
    names = {rank: collectives[number].name for rank, collectives in group.recorded.items() if number in collectives}
    usual, other = _usual_and_other(names)
    if not other:
        return ""
    name = names[other[0]]
    others = [rank for rank in other if names[rank] == name]
    return f"collective #{number} is {name} for {_ranks(others)} and {usual} for the others; they wait for each other"


def _different_sizes(group: _Group, number: int) -> str:
    """Describe ranks with tensors of another size; "" if all are equal, or if the collective allows different sizes."""
    entered = {rank: collectives[number] for rank, collectives in group.recorded.items() if number in collectives}
    usual, other = _usual_and_other(
        {rank: each.sizes for rank, each in entered.items() if each.name in _EQUAL_SIZE_COLLECTIVES}
    )
    if not other:
        return ""
    sizes = entered[other[0]].sizes
    others = [rank for rank in other if entered[rank].sizes == sizes]
    return (
        f"{_ranks(others)} entered {_collective_name(group, number)} with {_shapes(sizes)} numbers, the others with "
        f"{_shapes(usual)}"
    )


def _missing_dumps(group: _Group, number: int) -> str:
    """Describe ranks without a dump; "" if there is a dump of every rank."""
    unknown = sorted(group.members - group.recorded.keys())
    waiting = [
        rank
        for rank, collectives in group.recorded.items()
        if number in collectives and not collectives[number].is_finished
    ]
    return (
        f"there is no dump of {_ranks(unknown)}; waiting in {_collective_name(group, number)}: {_ranks(waiting)}"
        if unknown
        else ""
    )


def _all_entered(group: _Group, number: int) -> str:
    return f"every rank entered {_collective_name(group, number)}, which does not end"


def _collective_name(group: _Group, number: int) -> str:
    """Return the name of a collective. Example: "all_gather #1412"."""
    names = Counter(collectives[number].name for collectives in group.recorded.values() if number in collectives)
    return f"{names.most_common(1)[0][0]} #{number}"


def _usual_and_other(values: Mapping[int, Any]) -> tuple[Any, list[int]]:
    """Return the commonest value, and the ranks that have another one."""
    if not values:
        return None, []
    usual = Counter(values.values()).most_common(1)[0][0]
    return usual, [rank for rank, value in values.items() if value != usual]


def _shapes(sizes: Iterable[tuple[int, ...]]) -> str:
    """Format sizes. Example: "4096x16 + 4096"."""
    return " + ".join("x".join(map(str, size)) or "1" for size in sizes) or "0"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
