"""Stacks of other processes, read with py-spy, else by the signal handler that every worker registers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

SIGNAL = signal.SIGUSR2  # a worker that receives it writes the stacks of its threads into its log
_DUMP_S = 5.0
_HANDLER_S = 1.0  # for a process to write its stacks
_WORK = ("run", "converse", "act")  # methods of rlrun/cluster/worker_actor.py in which a request runs
_SIMULATOR = "rlrun/pipe/bootstrap.py"
_INNERMOST = 5  # a collective is among so many innermost frames


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
    """The thread of a process that works on a request, innermost frame first, and the whole dump as text."""

    frames: tuple[Frame, ...]
    holds_gil: bool
    text: str

    @property
    def where(self) -> str:
        """The innermost frame, and the innermost frame of rlrun if that is another one."""
        if not self.frames:
            return ""
        own = next((frame for frame in self.frames if "/rlrun/" in frame.path), None)
        if own is None or own == self.frames[0]:
            return str(self.frames[0])
        return f"{self.frames[0]} called by {own}"

    @property
    def is_in_collective(self) -> bool:
        """Whether the thread is in a collective of torch.distributed."""
        return any("/torch/distributed/" in frame.path for frame in self.frames[:_INNERMOST])


def dump(pid: int, log: Path | None) -> Stack:
    """Read the stacks of a process, also of a stopped one. Raises OSError with the reason if that fails.

    log: the file that the process's own handler writes to; None: it has no handler.
    """
    spy = Path(sysconfig.get_path("scripts")) / "py-spy"
    try:
        done = subprocess.run(
            [str(spy), "dump", "--json", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_DUMP_S,
            check=True,
        )
        return read_dump(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        words = getattr(error, "stderr", None) or str(error)
        return Stack((), False, _by_handler(pid, log, f"py-spy: {words.strip()}"))


def dump_worker(pid: int, log: Path | None) -> Stack:
    """Read the stacks of a worker and of its child processes (simulators, inference engine).

    If the worker waits for a child, the frames of the child are returned.
    """
    stack = dump(pid, log)
    for simulator in simulators_of(pid):
        try:
            inner = dump(simulator, log)
        except OSError as error:
            inner = Stack((), False, str(error))
        frames = inner.frames if any("/rlrun/pipe/" in frame.path for frame in stack.frames) else stack.frames
        text = f"{stack.text}\n--- its own process {simulator}\n{inner.text}"
        stack = Stack(frames or stack.frames, stack.holds_gil, text)
    return stack


def simulators_of(pid: int) -> list[int]:
    """Return the pids of a worker's child processes that run its simulators or its inference engine."""
    try:
        children = psutil.Process(pid).children()
        return [child.pid for child in children if any(word.endswith(_SIMULATOR) for word in child.cmdline())]
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
    working = max(reversed(stacks), key=_weight)  # py-spy lists the main thread last
    return Stack(working, any(thread["owns_gil"] for thread in threads), "\n".join(shown))


def _weight(frames: tuple[Frame, ...]) -> int:
    """Return a rank that is highest for the thread that runs a request, and 0 for others."""
    hosts = [frame.name.rpartition(".")[2] for frame in frames if frame.path.endswith("rlrun/cluster/worker_actor.py")]
    return max((len(_WORK) - _WORK.index(name) for name in hosts if name in _WORK), default=0)


def _by_handler(pid: int, log: Path | None, why: str) -> str:
    """Return the stacks that the process itself writes, where ptrace is denied. Raises OSError.

    A process without a handler gets no signal, which would end it.
    """
    if log is None or not log.exists() or not _catches(pid):
        raise OSError(why)
    before = log.stat().st_size
    os.kill(pid, SIGNAL)
    time.sleep(_HANDLER_S)
    with log.open("rb") as stream:
        stream.seek(before)
        text = stream.read().decode(errors="replace")
    if not text:
        raise OSError(f"{why}; it did not answer signal {SIGNAL.name} either")
    return text


def _catches(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)


def grouped(stacks: Mapping[str, Stack]) -> list[tuple[list[str], Stack]]:
    """Group workers with equal stacks, smallest group first, so that an outlier comes first."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for worker, stack in sorted(stacks.items()):
        groups.setdefault(tuple(f"{frame.name} {frame.path}" for frame in stack.frames), []).append(worker)
    return [(members, stacks[members[0]]) for members in sorted(groups.values(), key=lambda found: (len(found), found))]
