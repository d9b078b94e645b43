"""No bare waits: whatever can block for ever takes a timeout, or goes through the cluster's waits.

A wait on Ray of more than 20 s is one of `rlrun.cluster.waits`, which has a subject and names who is late.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.source import Module, assert_no_breach, modules, snippet

# method -> number of positional arguments that a call needs to be something else than a bare wait
BLOCKING_METHODS = {"get": 0, "join": 0, "wait": 0, "result": 0, "acquire": 0, "communicate": 0, "exception": 0}
COLLECTIVES = {"barrier", "monitored_barrier"}
TIMEOUT_WORDS = {"timeout", "timeout_s", "block", "blocking"}


def bare_waits(module: Module) -> Iterator[str]:
    """Calls that could wait for ever."""
    for node in module.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, method = ast.unparse(node.func.value), node.func.attr
        where = f"{module.where}:{node.lineno}: {ast.unparse(node.func)}"
        has_timeout = any(keyword.arg in TIMEOUT_WORDS for keyword in node.keywords)
        if owner == "ray" and method in ("get", "wait") and not has_timeout:
            yield f"{where} without timeout"
        elif method in COLLECTIVES and (owner in ("dist", "torch.distributed", "distributed")):
            yield f"{where}: a barrier names nobody; reduce something under a deadline"
        elif method == "ready" and owner.endswith(("pg", "placement_group", "group")):
            yield f"{where}: use wait with a timeout"
        elif owner != "ray" and method in BLOCKING_METHODS and not node.args and not has_timeout:
            yield f"{where} without timeout"


def test_no_bare_waits() -> None:
    assert_no_breach(breach for module in modules() for breach in bare_waits(module))


@pytest.mark.parametrize(
    "line",
    [
        "ray.get(reference)",
        "ray.wait([reference])",
        "thread.join()",
        "queue.get()",
        "event.wait()",
        "future.result()",
        "lock.acquire()",
        "dist.barrier()",
        "torch.distributed.barrier(group)",
        "ray.get(placement_group.ready())",
    ],
)
def test_the_rule_finds(line: str) -> None:
    assert list(bare_waits(snippet("rlrun.x", line)))


@pytest.mark.parametrize(
    "line",
    [
        "ray.get(reference, timeout=3)",
        "thread.join(timeout=3)",
        "thread.join(3.0)",
        "', '.join(words)",
        "table.get('key')",
        "queue.get(timeout=1.0)",
        "with lock: pass",
    ],
)
def test_the_rule_passes(line: str) -> None:
    assert not list(bare_waits(snippet("rlrun.x", line)))


LONGEST_S = 20.0  # that nobody is told about
WAITS = "rlrun.cluster.waits"


def unnamed_waits(module: Module) -> Iterator[str]:
    """Waits on Ray that may take longer than LONGEST_S, by the number, constant or minimum that is written there."""
    constants = {
        target.id: node.value.value
        for node in module.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def most(value: ast.expr) -> float:
        if isinstance(value, ast.Constant):
            return value.value
        if isinstance(value, ast.Name):
            return constants.get(value.id, float("inf"))
        is_min = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "min"
        return min(map(most, value.args)) if is_min else float("inf")

    for node in module.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("ray.get", "ray.wait"):
            limits = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
            if not limits or most(limits[0]) > LONGEST_S:
                yield f"{module.where}:{node.lineno}: {ast.unparse(node)}"


def test_long_waits_on_ray_have_a_subject() -> None:
    assert WAITS in [module.name for module in modules()]
    assert_no_breach(wait for module in modules() if module.name != WAITS for wait in unnamed_waits(module))


def test_the_rule_about_long_waits_finds_and_passes() -> None:
    assert list(unnamed_waits(snippet("rlrun.x", "ray.get(reference, timeout=deadline_s)")))
    assert list(unnamed_waits(snippet("rlrun.x", "_LONG_S = 30\nray.wait(references, timeout=_LONG_S)")))
    assert not list(unnamed_waits(snippet("rlrun.x", "_POLL_S = 1.0\nray.wait(refs, timeout=min(_POLL_S, left_s))")))
    assert not list(unnamed_waits(snippet("rlrun.x", "ray.get(reference, timeout=0)")))
