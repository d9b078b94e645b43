"""Tests of what torch computes judge it by the norm (tests/numerics.py), since each processor sums in its own order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.architecture.source import ROOT, Module, assert_no_breach, imports, read, snippet

ELEMENTWISE = {"assert_close", "assert_allclose", "assert_almost_equal", "allclose", "isclose"}


@cache
def torch_tests() -> list[Module]:
    """Every file of tests that imports torch."""
    files = map(read, sorted((ROOT / "tests").rglob("*.py")))
    return [module for module in files if any(name.split(".")[0] == "torch" for name, _ in imports(module))]


def compared_one_by_one(module: Module) -> Iterator[str]:
    """Calls that hold two arrays together element by element; `not allclose(…)` says that they differ, and may."""
    negated = {id(node.operand) for node in module.nodes if isinstance(node, ast.UnaryOp)}
    for node in module.nodes:
        if isinstance(node, ast.Call) and id(node) not in negated:
            name = ast.unparse(node.func)
            if name.split(".")[-1] in ELEMENTWISE:
                yield f"{module.where}:{node.lineno}: {name}; take tests.numerics"


def test_nothing_is_compared_one_by_one() -> None:
    assert_no_breach(breach for module in torch_tests() for breach in compared_one_by_one(module))


def test_the_rule_finds() -> None:
    assert list(compared_one_by_one(snippet("tests.x", "torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)")))
    assert list(compared_one_by_one(snippet("tests.x", "assert np.allclose(a, b)")))
    assert not list(compared_one_by_one(snippet("tests.x", "assert not torch.allclose(a, b)")))
    assert "tests.unit.policies.test_model" in [module.name for module in torch_tests()]
