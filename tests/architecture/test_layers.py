"""Who may import whom: the table of the design, lazy imports counted."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, Module, assert_no_breach, imports, modules, snippet

# package -> packages of rlrun that it may import besides itself
MAY_IMPORT = {
    "reproduction": {  # of LIBERO's suites, whose tasks and starts it counts
        *("system", "config", "data", "edges", "cluster", "policies", "training", "observability", "envs"),
    },
    "certification": {"system", "config", "data", "edges", "cluster", "training", "observability"},
    "training": {
        *("system", "config", "data", "edges", "placement", "controller", "cluster"),
        *("policies", "algorithms", "workers", "observability", "watchdog"),
    },
    "cluster": {
        *("system", "config", "data", "edges", "placement", "doctor", "controller"),
        *("observability", "watchdog"),
    },
    "controller": {"system", "config", "data", "edges", "algorithms", "placement", "observability", "workers"},
    "workers": {
        *("system", "config", "data", "edges", "algorithms", "envs", "policies", "rollout", "actor"),
        "observability",
    },
    "actor": {"system", "config", "data", "edges", "policies", "algorithms", "observability"},
    "rollout": {"system", "config", "data", "edges", "pipe", "policies", "algorithms", "serving"},
    "serving": {"system", "config", "data", "edges", "envs"},
    "policies": {"system", "config", "data", "edges", "algorithms"},
    "testing": {"system", "config", "data", "edges", "policies", "algorithms", "envs", "workers"},
    "envs": {"system", "config", "data", "edges", "pipe"},
    "pipe": {"system", "edges"},
    "watchdog": {"system", "config", "data", "observability"},
    "observability": {"system", "config", "data", "edges"},
    "doctor": {"system", "config", "data", "edges", "placement", "envs"},
    "placement": {"system", "config", "data", "edges", "policies"},
    "algorithms": {"system", "config", "data", "edges"},
    "config": {"system"},
    "data": {"system", "config", "edges"},
    "edges": {"system", "config"},
    "system": set(),
}
ENTRY_POINT = {
    *("system", "config", "data", "edges", "placement", "doctor", "controller", "cluster", "training", "workers"),
    *("observability", "watchdog", "serving", "envs", "policies", "algorithms", "testing"),
    *("certification", "reproduction"),
}

# library -> the only packages of rlrun that may import it
LIBRARIES = {
    "ray": {"cluster"},
    "hydra": {"config"},
    "omegaconf": {"config"},
    "transformers": {"policies", "rollout"},
    "mujoco": {"envs", "doctor"},  # doctor: in a process that tries a renderer
    "gymnasium": {"envs"},
    "libero": {"envs"},
    "robosuite": {"envs"},
    "websockets": {"serving"},
    "zmq": {"edges"},
    "sglang": {"rollout"},
    "flash_attn": {"policies"},
    "bitsandbytes": {"actor"},
    "omnigibson": {"envs"},
    "torch": {
        *("actor", "algorithms", "rollout", "edges", "policies", "observability", "workers", "cluster"),
        "testing",
        "doctor",  # only in the process that tries collectives
    },
}


# Imported in the simulator's interpreter, before any simulator.
SIMULATOR_SIDE = (
    *("rlrun.envs.remote_server", "rlrun.pipe.bootstrap", "rlrun.doctor.simulator_trials"),
    *("rlrun.envs.omnigibson.omnigibson_env", "rlrun.envs.omnigibson.kit_files", "rlrun.envs.own_reward"),
)
NEWER_THAN_3_10 = re.compile(
    r"\b(StrEnum|tomllib|ExceptionGroup|except\*|datetime\.UTC|from datetime import UTC|typing import .*\bSelf\b"
    r"|add_note|TaskGroup|batched)\b"
)


def package_of(name: str) -> str:
    """The "envs" of rlrun.envs.embedded.room; "" of the entry point rlrun.train."""
    parts = name.split(".")
    if parts[-1] == "__main__":
        return ""
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ""


def violations(module: Module) -> Iterator[str]:
    """Imports of `module` that the tables forbid."""
    package = package_of(module.name)
    allowed = MAY_IMPORT[package] | {package} if package else ENTRY_POINT
    for imported, line in imports(module):
        library = imported.split(".")[0]
        where = f"{module.where}:{line}"
        if library != "rlrun" and package and package not in LIBRARIES.get(library, {package}):
            yield f"{where}: {package} imports {library}"
        if library != "rlrun" or imported == "rlrun":
            continue
        target = package_of(imported)
        if package and not target:
            yield f"{where}: {package} imports the entry point {imported}"
        elif target and target not in allowed:
            yield f"{where}: {package or 'an entry point'} imports {target} ({imported})"


def test_tables_cover_every_package() -> None:
    packages = {path.parent.name for path in (ROOT / "rlrun").glob("*/__init__.py")}
    assert packages == set(MAY_IMPORT)


def test_imports() -> None:
    assert_no_breach(breach for module in modules() for breach in violations(module))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rlrun.envs.embedded.room", "import torch"),
        ("rlrun.envs.embedded.room", "def f():\n    import ray"),
        ("rlrun.envs.embedded.room", "from rlrun.policies import model"),
        ("rlrun.envs.make", "from ..policies import model"),
        ("rlrun.envs.make", "from .. import policies"),
        ("rlrun.envs.embedded.room", "import importlib\nimportlib.import_module('rlrun.controller.controller')"),
        ("rlrun.algorithms.losses", "from rlrun.policies.policy import Policy"),
        ("rlrun.workers.env_worker", "import rlrun.train"),
        ("rlrun.train", "from rlrun.actor.trainer import Trainer"),
    ],
)
def test_the_rule_finds(name: str, text: str) -> None:
    assert len(list(violations(snippet(name, text)))) == 1


def test_no_import_cycle() -> None:
    assert cycles({package: set(allowed) for package, allowed in MAY_IMPORT.items()}) == []
    assert cycles({"a": {"b"}, "b": {"a"}}) != []


def test_no_import_cycle_between_modules() -> None:
    """Lazy imports and those for type checkers count as well."""
    names = {module.name for module in modules()}
    graph = {
        module.name: {found for imported, _ in imports(module) for found in (module_in(imported, names),) if found}
        - {module.name}
        for module in modules()
    }
    assert len(graph["rlrun.training.loop"]) >= 3
    assert in_circles(graph) == []


def module_in(imported: str, names: set[str]) -> str | None:
    """The module that an import names, as a whole or by something in it; None: no module of rlrun."""
    outer = imported.rpartition(".")[0]
    return imported if imported in names else outer if outer in names else None


def in_circles(graph: dict[str, set[str]]) -> list[str]:
    """What is neither above nor below all circles: `cycles`, without those that only import from one."""
    rest = {name: graph[name] for name in cycles(graph)}
    imported = {name: {other for other in rest if name in rest[other]} for name in rest}
    return cycles(imported)


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """What remains when packages that import nothing of the rest are taken away, again and again."""
    rest = {package: set(targets) for package, targets in graph.items()}
    while free := [package for package, targets in rest.items() if not targets & set(rest)]:
        for package in free:
            del rest[package]
    return sorted(rest)


@pytest.mark.parametrize(
    "module",
    ["rlrun.config.schema", "rlrun.config.loader", "rlrun.edges.actions", "rlrun.envs.vector_env", "rlrun.placement"],
)
def test_imports_without_torch_or_ray(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in ('torch', 'ray', 'transformers', 'mujoco') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_config_imports_hydra_only_in_its_composition() -> None:
    users = {
        module.name for module in modules() for imported, _ in imports(module) if imported.split(".")[0] == "hydra"
    }
    assert users == {"rlrun.config.composition"}


def test_ray_is_applied_at_launch_only() -> None:
    """No class or function is decorated with ray.remote: workers stay plain classes."""
    assert_no_breach(
        f"{module.where}:{node.lineno}"
        for module in modules()
        for node in module.nodes
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        for decorator in node.decorator_list
        if "ray.remote" in ast.unparse(decorator)
    )


def test_what_runs_in_a_simulators_interpreter() -> None:
    """The standard library, numpy and msgpack are enough for all of it, and Python 3.10 can read it.

    A simulator's own module is imported when that simulator is asked for, and needs that simulator.
    """
    code = f"""
import importlib.abc, sys
class Closed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {{*sys.stdlib_module_names, "numpy", "msgpack", "rlrun"}}:
            raise ImportError(f"{{name}} is not there")
sys.meta_path.insert(0, Closed())
import {", ".join(SIMULATOR_SIDE)}
print(*sorted(m.__file__ for n, m in sys.modules.items() if n.startswith("rlrun.")), sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    files = done.stdout.split()
    assert len(files) > 10
    for file in files:
        ast.parse(Path(file).read_text(encoding="utf-8"), file, feature_version=(3, 10))
        assert not NEWER_THAN_3_10.search(Path(file).read_text(encoding="utf-8")), file
