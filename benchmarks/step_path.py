"""What a reader of one training step reads: `python -m benchmarks.step_path [key=value …]`.

Every call of the second training step of `run=halfcheetah cluster.kind=local` is recorded, in all threads: from the end
of the first update to the end of the second, so that logging, weight sync, collection and update are all in it. The
table has the files of rlrun that were entered, the lines of each, and the lines of its functions that ran. World
(envs), network (policies), observability and watchdog are left out: one reads the step without them. The edges between
workers, which check what crosses, are counted apart.

Below them stand the hops: rlrun's own functions that call one another, from the training loop to the function that runs
an update's optimizer steps, to torch's `distributed.checkpoint.save`, and to the policy's forward pass that answers env
workers: these are generators, which wait meanwhile. Comprehensions are no hops. Wanted: at most 32 files and 2,000
lines that run, of edges 5 and 500, an update in 7 hops and a save in 9.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from inspect import unwrap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "rlrun"
APART = ("envs", "policies", "observability", "watchdog")
EDGES = "edges"
# An episode is longer than both steps, as in the run itself, and evaluations are short.
DEFAULTS = (
    *("run=halfcheetah", "cluster.kind=local", "num_steps=2"),
    *("env.max_control_steps=200", "evaluation.num_episodes=1"),
)
WANTED = {"learning and collection": (32, 2000), EDGES: (5, 500)}  # files, lines that run
MAX_HOPS = {"update": 7, "save": 9, "act": None}
LOOP, EVALUATION = "synchronous", "evaluate"
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
FUNCTIONS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclass(frozen=True)
class EnteredFile:
    """One row. Example: EnteredFile("training/loop.py", 170, 92)."""

    name: str  # below rlrun/
    num_lines: int
    num_ran: int  # lines of the functions that ran

    @property
    def is_apart(self) -> bool:
        """Whether it belongs to world, network, observability or watchdog."""
        return self.name.split("/")[0] in APART


def main() -> None:
    """Train for two steps and print the table."""
    recorder = recorded_run([*DEFAULTS, *sys.argv[1:]])
    entered = entered_files(recorder.code)
    for name, files in parts(entered).items():
        print_table(files)
        max_files, max_lines = WANTED[name]
        print(f"files of {name}: {len(files)}   wanted: at most {max_files}")
        print(f"lines of them that ran: {sum(file.num_ran for file in files):,}   wanted: at most {max_lines:,}\n")
    print_table([file for file in entered if file.is_apart])
    print(f"all lines of rlrun/**/*.py: {sum(len(lines_of(path)) for path in PACKAGE.rglob('*.py')):,}")
    for name, most in MAX_HOPS.items():
        print_hops(name, recorder.stacks.get(name, []), most)


def parts(entered: Iterable[EnteredFile]) -> dict[str, list[EnteredFile]]:
    """Return the files of each part of WANTED."""
    read = [file for file in entered if not file.is_apart]
    edges = [file for file in read if file.name.startswith(f"{EDGES}/")]
    return {"learning and collection": [file for file in read if file not in edges], EDGES: edges}


def print_hops(name: str, stack: list[tuple[CodeType, int]], most: int | None) -> None:
    """One line a frame, the loop first; each frame below it is a hop."""
    wanted = "" if most is None else f"   wanted: at most {most}"
    print(f"\nhops of {name}: {len(stack) - 1 if stack else 'not seen'}{wanted}")
    for number, (code, line) in enumerate(stack):
        print(f"{number:>3}  {code.co_qualname:<46} {Path(code.co_filename).relative_to(PACKAGE)}:{line}")


def print_table(files: Iterable[EnteredFile]) -> None:
    """Most lines that ran first."""
    print(f"{'file':<44} {'lines':>6} {'ran':>6}")
    for file in sorted(files, key=lambda file: (-file.num_ran, file.name)):
        print(f"{file.name:<44} {file.num_lines:6} {file.num_ran:6}")
    print()


def recorded_run(overrides: list[str]) -> CallRecorder:
    """What `rlrun.train` calls in its second training step, and the stacks at its targets."""
    import torch.distributed.checkpoint as dcp

    from rlrun.actor.updates import on_policy_update
    from rlrun.policies.actor_critic.policy import ActorCriticPolicy

    targets = {"update": on_policy_update, "save": unwrap(dcp.save), "act": ActorCriticPolicy.__call__}
    recorder = CallRecorder(str(PACKAGE), {function.__code__: name for name, function in targets.items()})
    threading.setprofile(recorder.look)
    sys.setprofile(recorder.look)
    try:
        from rlrun.controller.controller import Controller
        from rlrun.train import main as train

        Controller.update = recorder.between_first_ends(Controller.update)
        with tempfile.TemporaryDirectory(prefix="rlrun-path-") as folder:
            try:
                train([*overrides, f"output_dir={folder}/run"])
            except SystemExit as end:
                if end.code:
                    raise
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    return recorder


class CallRecorder:
    """Keeps the code of functions below a folder that are called while it is on: in the thread that switches it on, and
    in those that were started with `look` as their profiler."""

    def __init__(self, folder: str, targets: dict[CodeType, str] | None = None):
        self.code: set[CodeType] = set()
        self.stacks: dict[str, list[tuple[CodeType, int]]] = {}  # of the first call of each target below the loop
        self._targets = targets or {}
        self._folder, self._is_on, self._num_ends = folder, False, 0

    def between_first_ends(self, function: Callable) -> Callable:
        """`function`, with whose first end recording begins; it stops with the second."""

        @wraps(function)
        def watched(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            self._num_ends += 1
            self._is_on = self._num_ends == 1
            sys.setprofile(self.look if self._is_on or self._targets else None)
            return result

        return watched

    def look(self, frame: FrameType, event: str, argument: object) -> None:
        """What Python calls for every call."""
        name = self._targets.get(frame.f_code) if event == "call" else None
        if name is not None and name not in self.stacks:
            stack = self._stack_of(frame)
            names = [code.co_name for code, _ in stack]
            if LOOP in names and EVALUATION not in names:
                self.stacks[name] = stack
        if self._is_on and event == "call":
            callers = [frame.f_back] if frame.f_back is not None else []  # the loop itself was called before
            self.code.update(
                each.f_code for each in (frame, *callers) if each.f_code.co_filename.startswith(self._folder)
            )

    def _stack_of(self, frame: FrameType | None) -> list[tuple[CodeType, int]]:
        """The frames below the folder from the loop, or the start of the thread, to this one."""
        found: list[tuple[CodeType, int]] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(self._folder) and code.co_name not in COMPREHENSIONS:
                found.insert(0, (frame.f_code, frame.f_lineno))
                if frame.f_code.co_name == LOOP:
                    break
            frame = frame.f_back
        return found


def entered_files(code: Iterable[CodeType]) -> list[EnteredFile]:
    """The files of the functions in `code`. Modules and class bodies, which are imported, are no functions."""
    started: dict[Path, set[int]] = defaultdict(set)
    for one in code:
        started[Path(one.co_filename)].add(one.co_firstlineno)
    files = []
    for path, first_lines in started.items():
        lines = lines_of(path)
        ran: set[int] = set()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, FUNCTIONS) and first_line(node) in first_lines:
                ran.update(range(first_line(node), (node.end_lineno or node.lineno) + 1))
        if ran:
            files.append(EnteredFile(str(path.relative_to(PACKAGE)), len(lines), len(ran)))
    return files


def first_line(node: ast.expr | ast.stmt) -> int:
    """Where a function's code says that it begins: at its first decorator."""
    decorators = getattr(node, "decorator_list", [])
    return min(part.lineno for part in (node, *decorators))


def lines_of(path: Path) -> list[str]:
    """Of a source file."""
    return path.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    main()
