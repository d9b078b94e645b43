"""Digests of sources: of the world that a run names, and of all code that computes what a cache holds."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from rlrun.config.own_reward import locations
from rlrun.config.registry import ALGORITHMS, POLICIES, SIMULATORS
from rlrun.config.schema import RunConfig
from rlrun.config.sections import top_of

# packages of rlrun that compute demonstrations, policies after imitation, and counts of policies
_COMPUTING = ("actor", "algorithms", "data", "envs", "policies", "workers")
_LOCATION = re.compile(r"[A-Za-z_]\w*(\.\w+)*:\S+")
_MAX_BYTES = 2**20  # of a file whose content counts; of a larger one its size does
_MAX_FILES = 10_000
_OWN = Path(__file__).parents[2]  # the folder that contains the package rlrun


def computing_digest(config: RunConfig) -> str:
    """Return the SHA-256 of all sources that compute what a cache holds for this run.

    They are rlrun's own, and those of a policy or an algorithm from elsewhere. A version number does not change with
    each edit. Sources of the world are in `world_digest`.
    """
    digest = hashlib.sha256()
    for package in _COMPUTING:
        for file in sorted((_OWN / "rlrun" / package).rglob("*.py")):
            digest.update(f"{file.relative_to(_OWN)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    kinds = (POLICIES.location(config.policy.kind), ALGORITHMS.location(config.algorithm.name))
    for name in sorted({kind.partition(".")[0].partition(":")[0] for kind in kinds} - {"rlrun"}):
        digest.update(_digest_of(name))
    return digest.hexdigest()


def world_digest(env: dict[str, Any]) -> str:
    """Return the SHA-256 of all sources that the section `env`, as plain data, names; of nothing if it names none.

    Worlds of rlrun count, too: after an update they may be drawn otherwise, or move otherwise.
    """
    digest = hashlib.sha256()
    for name in sorted(_modules(env)):
        digest.update(_digest_of(name))
    return digest.hexdigest()


def reward_digest(env: dict[str, Any]) -> str | None:
    """Return the SHA-256 of the sources of the own reward that `env` names; None: it is the simulator's."""
    names = sorted({top_of(location) for location in locations(env.get("reward"))})
    return hashlib.sha256(b"".join(_digest_of(name) for name in names)).hexdigest() if names else None


def _digest_of(name: str) -> bytes:
    """Return a line for each file of a top module or of a package of rlrun."""
    lines = [f"{name} {place} {hashlib.sha256(content).hexdigest()}\n" for place, content in _sources(name)]
    return "".join(lines).encode()


def _modules(env: dict[str, Any]) -> set[str]:
    """Return the top modules that `env` names, and of rlrun the packages of the modules that it names."""
    simulator = str(env.get("simulator"))
    texts = [*_texts(env), SIMULATORS.location(simulator) if simulator in SIMULATORS.names() else ""]
    modules = {text.partition(":")[0] for text in texts if _LOCATION.fullmatch(text)}
    return {
        module.rpartition(".")[0] if module.startswith("rlrun.") else module.partition(".")[0] for module in modules
    }


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, (dict, list)):
        for below in tree.values() if isinstance(tree, dict) else tree:
            yield from _texts(below)


def _sources(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield (place, content or size) of the files of a top module or of a package of rlrun; none if it is not here."""
    is_of_rlrun = name.startswith("rlrun.")
    spec = PathFinder.find_spec(name, [str(_OWN.joinpath(*name.split(".")[:-1]))] if is_of_rlrun else None)
    if spec is None:
        return
    for folder in sorted(spec.submodule_search_locations or ()):
        files = [file for file in Path(folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
        for file in sorted(files)[:_MAX_FILES]:
            size = file.stat().st_size
            yield str(file.relative_to(folder)), file.read_bytes() if size <= _MAX_BYTES else str(size).encode()
    if not spec.submodule_search_locations and spec.origin and spec.origin.endswith(".py"):
        for file in sorted(_with_imports(Path(spec.origin), set())):
            yield file.name, file.read_bytes()


def _with_imports(file: Path, files: set[Path]) -> set[Path]:
    """Add a module and those in its folder that it imports, directly or not, to `found`, and return that."""
    if file in files or not file.is_file():
        return files
    files.add(file)
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # the simulator will say so
        return files
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            _with_imports(file.with_name(name.partition(".")[0] + ".py"), files)
    return files
