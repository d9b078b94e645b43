"""A digest of the code of a world that a user wrote, so that what was made in it is not taken after an edit.

A world is named by texts of the section `env`: `module:SPEC`, `module:Name-v0`, `module:FUNCTION`. Their modules are
found without importing them. A module is its file and the modules beside it that it imports; a package is all of its
files. A world of rlrun itself has the version of rlrun for that.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from rlrun.config.registry import SIMULATORS

_LOCATION = re.compile(r"([A-Za-z_]\w*)(\.\w+)*:\S+")
_MAX_BYTES = 2**20  # of a file whose content counts; of a larger one its size does
_MAX_FILES = 10_000


def world_digest(env: dict[str, Any]) -> str:
    """Return the SHA-256 of all sources that the section `env`, as plain data, names; of nothing if it names none."""
    digest = hashlib.sha256()
    for name in sorted(_modules(env)):
        for place, content in _sources(name):
            digest.update(f"{name} {place} {hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def _modules(env: dict[str, Any]) -> set[str]:
    """Return the top modules that `env` names, without rlrun's."""
    found = {match[1] for text in _texts(env) if (match := _LOCATION.fullmatch(text))}
    simulator = str(env.get("simulator"))
    if simulator in SIMULATORS.names():
        found.add(SIMULATORS.location(simulator).partition(":")[0].partition(".")[0])
    return found - {"rlrun"}


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, (dict, list)):
        for below in tree.values() if isinstance(tree, dict) else tree:
            yield from _texts(below)


def _sources(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield (place, content or size) of the files of a top module; none if it is not found here."""
    spec = PathFinder.find_spec(name)
    if spec is None:
        return
    for folder in sorted(spec.submodule_search_locations or ()):
        files = [file for file in Path(folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
        for file in sorted(files)[:_MAX_FILES]:
            size = file.stat().st_size
            yield str(file.relative_to(folder)), file.read_bytes() if size <= _MAX_BYTES else str(size).encode()
    if not spec.submodule_search_locations and spec.origin and spec.origin.endswith(".py"):
        for file in sorted(_beside(Path(spec.origin), set())):
            yield file.name, file.read_bytes()


def _beside(file: Path, found: set[Path]) -> set[Path]:
    """Add a module and those in its folder that it imports, directly or not, to `found`, and return that."""
    if file in found or not file.is_file():
        return found
    found.add(file)
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # the simulator will say so
        return found
    for node in ast.walk(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            _beside(file.with_name(name.partition(".")[0] + ".py"), found)
    return found
