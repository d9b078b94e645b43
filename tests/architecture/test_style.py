"""Names, docstrings, the length of files, and errors that are not swallowed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.source import Module, assert_no_breach, modules, snippet

FORBIDDEN = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def forbidden_words(name: str) -> set[str]:
    """Forbidden words in a module or class name, in either spelling."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace(".", "_").split("_")
    return FORBIDDEN & set(words)


def misnamed(module: Module) -> Iterator[str]:
    """The module, its classes and functions whose names have a forbidden word."""
    if forbidden_words(module.name):
        yield module.where
    for node in module.nodes:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and forbidden_words(node.name):
            yield f"{module.where}:{node.lineno}: {node.name}"


def test_names() -> None:
    assert_no_breach(breach for module in modules() for breach in misnamed(module))


def test_the_name_rule_finds() -> None:
    assert list(misnamed(snippet("rlrun.camera_utils", "class WorkerManager:\n    def helper(self): pass"))) == [
        "rlrun/camera_utils.py",
        "rlrun/camera_utils.py:1: WorkerManager",
        "rlrun/camera_utils.py:2: helper",
    ]
    assert forbidden_words("rlrun.envs.camera_utils") == {"utils"}
    assert forbidden_words("WorkerManager") == {"manager"}
    assert not forbidden_words("management_of_rooms")


def without_a_sentence(module: Module) -> Iterator[str]:
    """Whether the file begins without one."""
    docstring = ast.get_docstring(module.tree)
    if not docstring:
        yield f"{module.where} begins without a docstring"
    elif not docstring.splitlines()[0].endswith((".", ":")):
        yield f"{module.where}: the first line is a sentence"


def test_docstring_of_one_line_first() -> None:
    assert_no_breach(breach for module in modules() for breach in without_a_sentence(module))


def test_the_rule_of_the_first_line_finds() -> None:
    assert list(without_a_sentence(snippet("rlrun.x", "x = 1")))
    assert list(without_a_sentence(snippet("rlrun.x", '"""What is\nhere."""')))
    assert not list(without_a_sentence(snippet("rlrun.x", '"""What is here."""')))


def bare(module: Module) -> Iterator[str]:
    """Public classes and functions without a docstring."""
    for node in module.nodes:
        is_public = isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")
        if is_public and not ast.get_docstring(node) and not is_self_evident(node, module):
            yield f"{module.where}:{node.lineno}: {node.name}"


def test_public_docstrings() -> None:
    assert_no_breach(breach for module in modules() for breach in bare(module))


def test_the_docstring_rule_finds() -> None:
    function = "def {}():\n" + "    f()\n" * 6
    assert list(bare(snippet("rlrun.x", function.format("public"))))
    assert list(bare(snippet("rlrun.x", "class Public:\n    x = 1")))
    assert not list(bare(snippet("rlrun.x", function.format("_own"))))


def is_self_evident(node: ast.ClassDef | ast.FunctionDef, module: Module) -> bool:
    """Enums and sections explain their members, nested functions and overrides have their outer one; a few lines
    say themselves what they do."""
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base) in ("Enum", "IntEnum", "Section", "NamedTuple") for base in node.bases)
    if node.end_lineno - node.lineno <= 5 or any("entry_point" in ast.unparse(word) for word in node.decorator_list):
        return True
    for outer in module.nodes:
        if isinstance(outer, ast.FunctionDef) and node in ast.walk(outer) and outer is not node:
            return True
        if isinstance(outer, ast.ClassDef) and node in outer.body and (outer.bases or outer.name.startswith("_")):
            return True
    return False


def test_errors_are_not_swallowed() -> None:
    assert_no_breach(breach for module in modules() for breach in swallowed(module))


def swallowed(module: Module) -> Iterator[str]:
    """Handlers of every exception that neither raise nor pass on what they caught."""
    for node in module.nodes:
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


def test_nothing_is_left_to_do() -> None:
    assert_no_breach(module.where for module in modules() if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", module.text))


MOST_LINES = 470
# Each is one table: the keys, and the checks of what keys say together.
MAY_BE_LONGER = (
    "rlrun/config/schema.py",
    "rlrun/envs/libero/export.py",  # one file, which runs alone under LIBERO's interpreter
)


def test_a_file_can_be_read_at_once() -> None:
    lengths = {module.where: len(module.text.splitlines()) for module in modules()}
    assert_no_breach(
        f"{where} has {length} lines, {MOST_LINES} are allowed"
        for where, length in lengths.items()
        if length > MOST_LINES and where not in MAY_BE_LONGER
    )
