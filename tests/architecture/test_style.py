"""Names, docstrings, and errors that are not swallowed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.source import Module, modules, snippet

FORBIDDEN = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def forbidden_words(name: str) -> set[str]:
    """Forbidden words in a module or class name, in either spelling."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace(".", "_").split("_")
    return FORBIDDEN & set(words)


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_docstring_of_one_line_first(module: Module) -> None:
    docstring = ast.get_docstring(module.tree)
    assert docstring, f"{module.where} begins without a docstring"
    assert docstring.splitlines()[0].endswith((".", ":")), f"{module.where}: the first line is a sentence"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_names(module: Module) -> None:
    assert not forbidden_words(module.name)
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            assert not forbidden_words(node.name), f"{module.where}:{node.lineno}: {node.name}"


def test_the_name_rule_finds() -> None:
    assert forbidden_words("rlrun.envs.camera_utils") == {"utils"}
    assert forbidden_words("WorkerManager") == {"manager"}
    assert not forbidden_words("management_of_rooms")


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_public_docstrings(module: Module) -> None:
    bare = [
        f"{module.where}:{node.lineno}: {node.name}"
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
        and not is_self_evident(node, module.tree)
    ]
    assert bare == []


def is_self_evident(node: ast.ClassDef | ast.FunctionDef, tree: ast.Module) -> bool:
    """Enums and sections explain their members, nested functions and overrides have their outer one; a few lines
    say themselves what they do."""
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base) in ("Enum", "IntEnum", "Section", "NamedTuple") for base in node.bases)
    if node.end_lineno - node.lineno <= 5 or any("entry_point" in ast.unparse(word) for word in node.decorator_list):
        return True
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef) and node in ast.walk(outer) and outer is not node:
            return True
        if isinstance(outer, ast.ClassDef) and node in outer.body and (outer.bases or outer.name.startswith("_")):
            return True
    return False


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_errors_are_not_swallowed(module: Module) -> None:
    assert list(swallowed(module)) == []


def swallowed(module: Module) -> Iterator[str]:
    """Handlers of every exception that neither raise nor pass on what they caught."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        is_broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
        below = [inner for statement in node.body for inner in ast.walk(statement)]
        is_told = any(isinstance(inner, ast.Name) and inner.id == node.name for inner in below)
        if is_broad and not is_told and not any(isinstance(inner, ast.Raise) for inner in below):
            yield f"{module.where}:{node.lineno}"


def test_the_swallowing_rule_finds() -> None:
    assert list(swallowed(snippet("rlrun.x", "try: f()\nexcept Exception: pass")))
    assert list(swallowed(snippet("rlrun.x", "try: f()\nexcept: g()")))
    assert not list(swallowed(snippet("rlrun.x", "try: f()\nexcept Exception as e: tell(e)")))


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_nothing_is_left_to_do(module: Module) -> None:
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", module.path.read_text(encoding="utf-8"))
