"""How many small faults the tests find: `python -m benchmarks.mutants draw|map|run …`, of which none changes this tree.

    draw                    writes benchmarks/mutants.json: faults that are found again stay, others are drawn anew
    map FOLDER [PATH …]     runs the cheap tests once under coverage.py: which tests run which line (20 minutes)
    run FOLDER              puts one fault after the other into a copy of the tree, runs tests that reach its line,
                            and prints a table and what no test found; another call goes on where one was stopped

`map` and `run` want `pip install pytest-cov`. Start `run` as `unshare --pid --fork --kill-child --mount-proc python -m
benchmarks.mutants run FOLDER`: with a fault inside, code that stops processes could find those of others.

A fault is known by its function, its statement and its place in there, not by file and line, so that it is found again
where modules were merged or renamed. One whose statement was rewritten counts as changed, on neither side. What only
tests that start Ray or a whole program reach counts as not covered: such a process is not measured.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import ctypes
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "benchmarks/mutants.json"
# How many of each.
PACKAGES = {"algorithms": 20, "actor": 20, "workers": 20, "edges": 40, "placement": 20, "watchdog": 20, "policies": 20}
SEED = 0
TESTS = ("tests/unit", "tests/contracts", "tests/golden")
CHEAP = "not (integration or learning or cluster or gpu or pretended_cuda or long)"
MAX_TESTS, TIMEOUT_S, TIMED_OUT, PROCESSES = 25, 120.0, -1, 2

PAIRS = ("Lt LtE", "Gt GtE", "Eq NotEq", "Is IsNot", "In NotIn", "Add Sub", "Mult Div", "FloorDiv Mod")
OPERATORS = {
    getattr(ast, one): getattr(ast, other) for pair in map(str.split, PAIRS) for one, other in (pair, pair[::-1])
}
SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
SEQUENCES = (ast.JoinedStr, ast.List, ast.Tuple)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TEXTS = re.compile(r"(^|[._])(log|warn|warning|print|debug|info|error|exception)$|Error$")  # callees that take texts
# Values that decide about speed, layout or a second look, which no test should pin.
FREE_KEYWORDS = {"daemon", "non_blocking", "stacklevel", "indent", "strict"}
# No fault goes into a function that kills processes or deletes folders: it could meet those of others.
DANGEROUS = {"rmtree", "kill", "killpg", "send_signal", "terminate"}


@dataclass(frozen=True)
class Place:
    """One possible fault. Example: "x > 0" for "x >= 0" in the statement "if x >= 0 and y:" of the function `f`."""

    identity: tuple[str, str, str, int]  # function, statement, kind, how many of this kind come before in the statement
    path: str  # below the root
    lines: tuple[int, int]  # of the node, and where the statement begins
    span: tuple[int, int]  # bytes of the file that are replaced
    before: str
    after: str


def all_places() -> Iterator[Place]:
    """Possible faults in the functions of every file of rlrun."""
    for path in sorted((ROOT / "rlrun").rglob("*.py")):
        yield from places_of(str(path.relative_to(ROOT)), path.read_bytes())


def places_of(path: str, source: bytes) -> Iterator[Place]:
    """Possible faults in the functions of one file."""
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    for function, statement in statements(ast.parse(source), ""):
        text, seen = header(statement), Counter[str]()
        for node in expressions(statement):
            for kind, replaced, after in faults(node):
                begin = starts[replaced.lineno - 1] + replaced.col_offset
                end = starts[replaced.end_lineno - 1] + replaced.end_col_offset
                where = ((replaced.lineno, statement.lineno), (begin, end))
                yield Place((function, text, kind, seen[kind]), path, *where, ast.unparse(replaced), after)
                seen[kind] += 1


def statements(node: ast.AST, function: str) -> Iterator[tuple[str, ast.stmt]]:
    """(innermost function, statement) of everything that runs in a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            used = {each.attr for each in ast.walk(child) if isinstance(each, ast.Attribute)}
            if child.name not in ("__repr__", "__str__") and not DANGEROUS & used:
                yield from statements(child, child.name)
        elif isinstance(child, ast.ClassDef):
            yield from statements(child, "")
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            if function and isinstance(child, ast.stmt):
                yield function, child
            yield from statements(child, function)


def header(statement: ast.stmt) -> str:
    """The text of a statement, of a compound one without its body."""
    bare = copy.copy(statement)
    for field in BODIES:
        if hasattr(bare, field):
            setattr(bare, field, [ast.Pass()] if field == "body" else [])
    text = ast.unparse(bare)
    return text.splitlines()[0] if any(hasattr(bare, field) for field in BODIES) else text


def expressions(node: ast.AST) -> Iterator[ast.AST]:
    """The statement itself and what is evaluated in it, without bodies, annotations and texts for readers."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
        return
    call = node.value if isinstance(node, ast.Expr) else node
    if isinstance(call, ast.Call) and TEXTS.search(ast.unparse(call.func)):
        return
    if isinstance(node, ast.keyword) and node.arg in FREE_KEYWORDS:
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field == "annotation" or (isinstance(node, (ast.stmt, ast.ExceptHandler)) and field in BODIES):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from expressions(child)


def faults(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """(kind, what is replaced, by what) for one node."""
    match node:
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                ops = [*node.ops[:number], OPERATORS[type(operator)](), *node.ops[number + 1 :]]
                yield "comparison", node, bracketed(ast.Compare(node.left, ops, node.comparators))
        case ast.BinOp() if type(node.op) in OPERATORS and not is_sequence(node.left) and not is_sequence(node.right):
            yield "arithmetic", node, bracketed(ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))
        case ast.AugAssign() if type(node.op) in OPERATORS and not is_sequence(node.value):
            yield "arithmetic", node, ast.unparse(ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", node, bracketed(ast.BoolOp(other, node.values))
        case ast.Constant(value=bool()):
            yield "True/False", node, str(not node.value)
        case ast.Constant(value=int() | float()):
            yield "number", node, str(node.value + 1)
        case ast.Return(value=ast.expr()) if ast.unparse(node) != "return None":
            yield "return None", node, "return None"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "call deleted", node, "pass"
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            yield "min/max", node.func, SWAPPED[name]
        case ast.Call(func=ast.Attribute(attr=name)) if name in SWAPPED:
            yield "min/max", node.func, f"{ast.unparse(node.func.value)}.{SWAPPED[name]}"
    tests = [node.test] if isinstance(node, (ast.If, ast.While, ast.IfExp)) else getattr(node, "ifs", [])
    for test in tests:
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1):  # whose operator is changed already
            is_negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
            yield "negation", test, bracketed(test.operand if is_negated else ast.UnaryOp(ast.Not(), test))


def is_sequence(node: ast.expr) -> bool:
    """Whether an operand is written as a text, list or tuple, with which other arithmetic only raises."""
    return isinstance(getattr(node, "value", None), (str, bytes)) or isinstance(node, SEQUENCES)


def bracketed(node: ast.expr) -> str:
    """The text of an expression that can stand anywhere."""
    return f"({ast.unparse(node)})"


def draw(before: list[dict]) -> list[dict]:
    """For each package those of before that are found again, then a kind at random, a place of this kind, and one per
    statement."""
    everywhere = list(all_places())
    times = Counter(place.identity for place in everywhere)
    statement_times = Counter(place.identity[1:] for place in everywhere)
    drawn = []
    for package, wanted in PACKAGES.items():
        choice = random.Random(f"{SEED} {package}")
        pairs = zip(before, found_again(before), strict=True)
        kept = [mutant for mutant, place in pairs if mutant["package"] == package and place is not None]
        drawn += kept
        of_kind: dict[str, list[Place]] = defaultdict(list)
        for place in everywhere:
            if place.path.split("/")[1] == package and times[place.identity] == 1:
                of_kind[place.identity[2]].append(place)
        taken = {(mutant["function"], mutant["statement"]) for mutant in kept}
        while len(taken) < wanted:
            kind = choice.choice(sorted(kind for kind, places in of_kind.items() if places))
            identity = of_kind[kind].pop(choice.randrange(len(of_kind[kind]))).identity
            if identity[:2] not in taken:
                taken.add(identity[:2])
                known = dict(zip(("function", "statement", "kind", "nth"), identity, strict=True))
                drawn.append({"package": package, **known, "alone": statement_times[identity[1:]] == 1})
    return drawn


def found_again(mutants: list[dict]) -> list[Place | None]:
    """Where each of them is in this tree: in a function of its name, or anywhere if no other had its statement."""
    by_identity, by_statement = defaultdict(list), defaultdict(list)
    for place in all_places():
        by_identity[place.identity].append(place)
        by_statement[place.identity[1:]].append(place)
    found = []
    for mutant in mutants:
        identity = (mutant["function"], mutant["statement"], mutant["kind"], mutant["nth"])
        places = by_identity[identity] or (by_statement[identity[1:]] if mutant["alone"] else [])
        found.append(places[0] if len(places) == 1 else None)
    return found


def measure_coverage(folder: Path, paths: Iterable[str]) -> int:
    """Run the cheap tests, each with its own context."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"COVERAGE_FILE": str(folder.resolve() / "coverage.data")}
    words = ["-q", "-n", str(PROCESSES), "-m", CHEAP, "--cov=rlrun", "--cov-context=test", "--cov-report=", *paths]
    return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, check=False).returncode


def tests_of(places: Iterable[Place | None], folder: Path) -> dict[Place, list[str]]:
    """For each place the tests that reach it: first those of its package, different functions before other parameters,
    and tests that run little before those that run much."""
    from coverage import CoverageData

    data = CoverageData(str(folder / "coverage.data"))
    data.read()
    lines, sizes = {}, Counter[str]()
    for name in data.measured_files():
        lines[name[name.rindex("/rlrun/") + 1 :]] = by_line = data.contexts_by_lineno(name)
        sizes.update(context.rpartition("|")[0] for contexts in by_line.values() for context in contexts)
    of_file = defaultdict(list)  # a fixture that the tests of a file share is measured with the first of them
    for test in sizes:
        of_file[test.partition("::")[0]].append(test)
    chosen = {}
    for place in filter(None, places):
        contexts = next(filter(None, (lines.get(place.path, {}).get(line) for line in place.lines)), [])
        reach = {context.rpartition("|")[0] for context in contexts} - {""}
        prepared = {context.partition("::")[0] for context in contexts if context.endswith("|setup")}
        reach |= {test for file in prepared for test in of_file[file]}
        package, seen, order = place.path.split("/")[1], Counter[str](), {}
        for test in sorted(reach, key=lambda test: (sizes[test], test)):
            order[test] = (f"/{package}/" not in test, seen[test.partition("[")[0]])
            seen[test.partition("[")[0]] += 1
        chosen[place] = sorted(order, key=lambda test: order[test])[:MAX_TESTS]
    return chosen


def run_all(places: list[Place | None], folder: Path) -> None:
    """Judge what has no result yet, in some processes with a copy of the tree each."""
    results = folder / "results.jsonl"
    tests = tests_of(places, folder)
    done = [number for number, outcome in read_results(results).items() if outcome != "not run"]
    left = [number for number, place in enumerate(places) if place is not None and number not in done]
    random.Random(SEED).shuffle(left)  # so that all packages have had some, where it is stopped
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    import numpy as np  # noqa: F401  the children have them already
    import pytest  # noqa: F401
    import torch  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="m-") as copies:
        workers = set()
        for share in range(PROCESSES):
            if (pid := os.fork()) == 0:
                ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what a test leaves behind is ours to stop
                tree = Path(copies) / str(share)
                shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".*", "runs"))
                subprocess.run([sys.executable, "-m", "compileall", "-q", "rlrun"], cwd=tree, check=False, env={})
                for number in left[share::PROCESSES]:
                    place = places[number]
                    began = time.monotonic()
                    outcome, by = judged(place, tests[place], tree) if tests[place] else ("not covered", "")
                    line = {"number": number, "outcome": outcome, "by": by, "seconds": time.monotonic() - began}
                    with results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                os._exit(0)
            workers.add(pid)
        while workers:
            workers.discard(os.wait()[0])


def judged(place: Place, tests: list[str], tree: Path) -> tuple[str, str]:
    """("killed" or "alive", by which test). A test that fails without the fault too has no say."""
    path = tree / place.path
    source, times = path.read_bytes(), path.stat()
    changed = source[: place.span[0]] + place.after.encode() + source[place.span[1] :]
    while tests:
        path.write_bytes(changed)
        code, failed = end_of(tests, tree)
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as the compiled file says
        if code == 0:
            return "alive", ""
        suspects = [failed] if failed and code != TIMED_OUT else tests
        if end_of(suspects, tree)[0] == 0:
            return "killed", "timeout" if code == TIMED_OUT else failed or "import"
        if code == TIMED_OUT:
            return "not run", "slower than the limit without the fault too"
        tests = [test for test in tests if test not in suspects]
    return "not covered", "only tests that fail without it"


def end_of(tests: list[str], tree: Path) -> tuple[int, str]:
    """(exit status, first test that failed) of pytest in a fork, which has torch already but no rlrun."""
    own = tree.with_name(f"{tree.name}t")
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    if (pid := os.fork()) == 0:
        run_tests(tests, tree, own)
    deadline, code = time.monotonic() + TIMEOUT_S, TIMED_OUT
    while code == TIMED_OUT and time.monotonic() < deadline:
        time.sleep(0.05)
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            code = 0 if (own / "passed").exists() else 1
    left = psutil.Process().children(recursive=True)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)
    failed = own / "failed"
    return code, failed.read_text(encoding="utf-8") if failed.exists() else ""


def run_tests(tests: list[str], tree: Path, own: Path) -> None:
    """What a fork does: it ends here, without the exit handlers of its parent."""
    import pytest

    import benchmarks

    class Failures:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and not (own / "failed").exists():
                (own / "failed").write_text(report.nodeid, encoding="utf-8")

    try:
        output = os.open(own / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(os.dup2(output, 1), 2)
        os.chdir(tree)
        os.environ |= {"TMPDIR": str(own), "PYTHONPATH": str(tree)}
        tempfile.tempdir = None
        benchmarks.__path__[:] = [str(tree / "benchmarks")]
        sys.path[:] = [str(tree), *(each for each in sys.path if each not in ("", str(ROOT)))]
        words = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0", *tests]
        if pytest.main(words, plugins=[Failures()]) == 0:
            (own / "passed").touch()
    finally:
        os._exit(0)


def read_list() -> list[dict]:
    """The drawn faults."""
    return list(json.loads(LIST.read_text(encoding="utf-8")))


def read_results(path: Path) -> dict[int, str]:
    """The outcome of each mutant that was judged so far."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result["number"]: result["outcome"] for result in map(json.loads, lines)}


def show(mutants: list[dict], places: list[Place | None], of_number: dict[int, str]) -> None:
    """A row for each package, and what no test found."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for number, mutant in enumerate(mutants):
        outcome = "changed" if places[number] is None else of_number.get(number, "not run")
        for row in (mutant["package"], "all"):
            outcomes[row][outcome] += 1
    columns = ("killed", "alive", "not covered", "changed", "not run")
    print(f"{'package':<12} {'drawn':>6} " + " ".join(f"{column:>11}" for column in columns) + "   killed of covered")
    for row, counts in sorted(outcomes.items(), key=lambda item: (item[0] == "all", item[0])):
        share = counts["killed"] / max(1, counts["killed"] + counts["alive"])
        cells = " ".join(f"{counts[column]:>11}" for column in columns)
        print(f"{row:<12} {counts.total():>6} {cells}   {share:>17.0%}")
    for wanted in ("alive", "not covered"):
        print(f"\n{wanted}:")
        for number, place in enumerate(places):
            if place is not None and of_number.get(number) == wanted:
                where = f"{place.path}:{place.lines[0]} {place.identity[0]}"
                print(f"{number:>4} {where}: {' '.join(place.before.split())} -> {place.after}")


def main() -> None:
    """Draw, map or run."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("what", choices=("draw", "map", "run"))
    words.add_argument("folder", type=Path, nargs="?", default=Path("runs/mutants"))
    words.add_argument("paths", nargs="*", default=TESTS)
    given = words.parse_args()
    if given.what == "draw":
        LIST.write_text("[\n" + ",\n".join(map(json.dumps, draw(read_list()))) + "\n]\n", encoding="utf-8")
    elif given.what == "map":
        sys.exit(measure_coverage(given.folder, given.paths))
    else:
        mutants = read_list()
        places = found_again(mutants)
        run_all(places, given.folder)
        show(mutants, places, read_results(given.folder / "results.jsonl"))


if __name__ == "__main__":
    main()
