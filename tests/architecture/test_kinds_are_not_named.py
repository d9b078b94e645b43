"""The core knows no simulator by name: each is named in its own folder, in configurations and in documents only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from rlrun.config.registry import SIMULATORS
from tests.architecture.source import Module, assert_no_breach, modules, snippet

# rlrun.<package>.<module> -> names that stand in its texts for people
ALLOWED = {
    "rlrun.watchdog.diagnosis": {"omnigibson"},  # a table of problems that users know
    "rlrun.config.schema": {"embedded"},  # the default of env.simulator
    "rlrun.doctor.simulator_checks": {"embedded", "gymnasium", "libero"},  # keys in the doctor's table and its fixes
    "rlrun.observability.report.page": {"embedded"},  # pictures, in HTML
    "rlrun.reproduce": {"libero"},  # the command that reproduces what was published on it
    "rlrun.policies.gr00t.config": {"libero"},  # a value in LeRobot's folders
}


def named(module: Module) -> Iterator[tuple[str, int]]:
    """Simulators that a module names in its code: identifiers and texts, without docstrings and comments."""
    names = pattern_of_names()
    docstrings = {
        id(node.body[0].value)
        for node in module.nodes
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in module.nodes:
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            text = node.value
        elif isinstance(node, (ast.Name, ast.Attribute)):
            text = node.id if isinstance(node, ast.Name) else node.attr
        for found in names.findall(text):
            yield found.lower(), getattr(node, "lineno", 0)


@cache
def own_names() -> tuple[str, ...]:
    return tuple(name for name in SIMULATORS.names() if SIMULATORS.location(name).startswith("rlrun."))


@cache
def pattern_of_names() -> re.Pattern[str]:
    return re.compile(rf"\b({'|'.join(own_names())})\b", re.IGNORECASE)


def is_of_a_simulator(module: Module) -> bool:
    """Its folder, its file of the doctor, or the reproduction of what was published on one of them."""
    places = ("rlrun.envs.{}", "rlrun.doctor.{}_", "rlrun.reproduction")
    return any(module.name.startswith(place.format(name)) for place in places for name in own_names())


def test_the_core_names_no_simulator() -> None:
    assert_no_breach(
        f"{module.where}:{line}: {name}"
        for module in modules()
        if not is_of_a_simulator(module)
        for name, line in named(module)
        if name not in ALLOWED.get(module.name, ())
    )


def test_the_reader_finds_a_name() -> None:
    module = snippet(
        "rlrun.x", 'def f(config):\n    """Libero."""\n    return config.env.simulator == "libero"  # libero\n'
    )
    assert list(named(module)) == [("libero", 3)]
