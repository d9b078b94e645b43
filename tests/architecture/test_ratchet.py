"""Sizes that only grow where a commit says why: ratchet.toml beside this file holds each, with its reason.

Rooms are the packages directly below rlrun/. `python -m tests.architecture.test_ratchet` prints what is measured now.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.architecture.source import ROOT, Module, modules, snippet

RATCHET = Path(__file__).with_name("ratchet.toml")
COMPLEX = 15  # decisions of a function, and 1, from which it is told
DECISIONS = (ast.If, ast.For, ast.While, ast.IfExp, ast.comprehension, ast.With, ast.ExceptHandler)
OTHER_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def held() -> dict[str, Any]:
    """Return the numbers of ratchet.toml."""
    return tomllib.loads(RATCHET.read_text(encoding="utf-8"))


@cache
def lines_by_room() -> dict[str, int]:
    """Return the lines of each package below rlrun/."""
    lines: Counter[str] = Counter()
    for module in modules():
        parts = module.name.split(".")
        lines[parts[1] if len(parts) > 1 and (ROOT / "rlrun" / parts[1]).is_dir() else "rlrun"] += num_lines(module)
    return dict(lines)


def num_lines(module: Module) -> int:
    """Return the number of lines of a file."""
    return len(module.text.splitlines())


def complexity(function: Function) -> int:
    """Return 1 and the decisions of a function: branches, loops, handlers, and each further operand of and/or."""
    count = 1
    pending: list[ast.AST] = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        count += isinstance(node, DECISIONS)
        if not isinstance(node, OTHER_SCOPES):
            pending += ast.iter_child_nodes(node)
    return count


def functions(module: Module) -> Iterator[Function]:
    """Yield each function and method of a file."""
    yield from (node for node in module.nodes if isinstance(node, Function))


def complex_functions(module: Module) -> list[str]:
    """Return the functions of a file that decide too much, as "file:line name (complexity)"."""
    found = [(complexity(function), function) for function in functions(module)]
    return [f"{module.where}:{one.lineno} {one.name} ({size})" for size, one in found if size >= COMPLEX]


def late_constants(module: Module) -> list[str]:
    """Return the assignments of a file that stand after its first definition."""
    body = module.tree.body
    first = next((i for i, node in enumerate(body) if isinstance(node, (*OTHER_SCOPES,))), len(body))
    assigned = [node for node in body[first:] if isinstance(node, (ast.Assign, ast.AnnAssign))]
    return [f"{module.where}:{node.lineno} {ast.unparse(node)[:60]}" for node in assigned]


def packed_assignments(module: Module) -> int:
    """Return how many statements of a file assign several names to values that are written out, as a, b = 1, 2."""
    return sum(
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
        for node in module.nodes
    )


def measured() -> dict[str, Any]:
    """Return what the sources hold now, under the names of ratchet.toml."""
    num_functions = sum(1 for module in modules() for _ in functions(module))
    num_packed = sum(map(packed_assignments, modules()))
    test_lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    return {
        "complex_functions": sum(len(complex_functions(module)) for module in modules()),
        "files_with_late_constants": sum(bool(late_constants(module)) for module in modules()),
        "late_loggers": sum(" logger = " in text for module in modules() for text in late_constants(module)),
        "packed_assignments_per_1000_functions": round(1000 * num_packed / num_functions),
        "test_lines_per_100_product_lines": round(100 * test_lines / sum(lines_by_room().values())),
        "lines": lines_by_room(),
    }


def test_nothing_grows_without_a_reason() -> None:
    now = measured()
    grown = [
        f"{name}: {now[name]}, at most {held()[name]}" for name in now if name != "lines" and now[name] > held()[name]
    ]
    assert not grown, f"raise a number in {RATCHET.name} only with a reason behind it: {grown}"


def test_no_room_grows_without_a_reason() -> None:
    assert lines_by_room().keys() == held()["lines"].keys()
    grown = [
        f"{room}: {lines}, at most {held()['lines'][room]}"
        for room, lines in lines_by_room().items()
        if lines > held()["lines"][room]
    ]
    assert not grown, f"raise the room's number in {RATCHET.name} only with a reason behind it: {grown}"


def test_the_rules_find() -> None:
    branches = "def f(x):\n" + "".join(f"    if x == {i} and x:\n        return {i}\n" for i in range(7))
    assert complex_functions(snippet("rlrun.x", branches))
    assert not complex_functions(snippet("rlrun.x", "def f(x):\n    def g(y):\n        return [y for y in x if y]\n"))
    assert late_constants(snippet("rlrun.x", "def f(): ...\nlogger = 1\n"))
    assert not late_constants(snippet("rlrun.x", "A = 1\ndef f(): ...\n"))
    assert packed_assignments(snippet("rlrun.x", "a, b = 1, 2\nc, d = f()\n")) == 1


def main() -> None:
    """Print the numbers as ratchet.toml holds them, and the functions that decide too much."""
    now = measured()
    for name, number in now.items():
        if name != "lines":
            print(f"{name} = {number}")
    print("\n[lines]")
    for room, lines in sorted(now["lines"].items()):
        print(f"{room} = {lines}")
    for module in modules():
        for text in complex_functions(module):
            print(f"# {text}")


if __name__ == "__main__":
    main()
