"""The sources of rlrun as syntax trees, for rules that look at code without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

IMPORTERS = ("importlib.import_module", "import_module", "__import__")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Module:
    """One file. Example: Module("rlrun.envs.embedded.room", Path(…), tree)."""

    name: str
    path: Path
    tree: ast.Module

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree, as ast.walk gives them; every rule reads them."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def text(self) -> str:
        """What the file holds."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def where(self) -> str:
        """Path in the repository."""
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else str(self.path)


@cache
def modules() -> tuple[Module, ...]:
    """Every module of rlrun."""
    return tuple(read(path) for path in sorted((ROOT / "rlrun").rglob("*.py")))


@cache
def read(path: Path) -> Module:
    """Parse one file, once in a process."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return Module(name, path, ast.parse(path.read_text(encoding="utf-8")))


def snippet(name: str, text: str) -> Module:
    """A module that exists only in a test of a rule."""
    return Module(name, Path(name.replace(".", "/") + ".py"), ast.parse(text))


@cache
def imports(module: Module) -> tuple[tuple[str, int], ...]:
    """(imported module, line), lazy imports and those for type checkers included."""
    return tuple(_imports(module))


def _imports(module: Module) -> Iterator[tuple[str, int]]:
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module or "") if part)
            yield from ((f"{source}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in IMPORTERS and node.args:
            yield ast.unparse(node.args[0]).strip("'"), node.lineno


def assert_no_breach(breaches: Iterable[str]) -> None:
    """A rule holds everywhere; else the message lists every breach, a line each."""
    found = list(breaches)
    assert not found, f"{len(found)} breaches:\n" + "\n".join(found)
