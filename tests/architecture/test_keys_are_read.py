"""Every configuration key has an effect: something outside rlrun/config reads it."""

from __future__ import annotations

import ast
from typing import get_type_hints

from rlrun.config.reference import all_keys, sections
from rlrun.config.registry import schema_with
from rlrun.config.sections import KindSection, Section
from tests.architecture.source import Module, modules, snippet


def classes_of(section: type, prefix: str = "") -> dict[str, type]:
    """Path of every section below -> its class. Example: {"env": EnvConfig, "env.omnigibson": …}."""
    found: dict[str, type] = {}
    for name, hint in get_type_hints(section).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            found |= {prefix + name: hint} | classes_of(hint, f"{prefix}{name}.")
    return found


SECTIONS = classes_of(schema_with())
READ_IN_CONFIG = {"python_path"}  # where a configuration arrives in another process
# a class stands for the sections of its subclasses as well: policy.cnn has every key of policy.mlp
CLASS_OF = {
    kind.__name__: {path for path, other in SECTIONS.items() if issubclass(other, kind)}
    for section in SECTIONS.values()
    for kind in section.__mro__
    if issubclass(kind, Section) and kind not in (Section, KindSection)
}


def reads(module: Module) -> set[str]:
    """Keys that the module reads, as dotted paths.

    A read is `<expression of a section>.<key>`. What an expression is follows from its name or from
    what was assigned to it in the same module: `config.env`, `self.config.env`, a variable or attribute
    assigned from such a thing, or a parameter annotated with the section's class.
    """
    names = section_names(module)
    found: set[str] = set()
    for node in module.nodes:
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        for section in section_of(node.value, names):
            path = f"{section}.{node.attr}" if section else node.attr
            found.add(path)
    return found


def section_of(node: ast.expr, names: dict[str, set[str]]) -> set[str]:
    """Sections that an expression may be: "" is the whole configuration."""
    if isinstance(node, ast.Name):
        return names.get(node.id, {""} if node.id == "config" else set())
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "section":
        kinds = [ast.unparse(argument) for argument in node.args]  # config.env.section(LiberoConfig)
        return set().union(*(CLASS_OF[kind] for kind in kinds if kind in CLASS_OF))
    if isinstance(node, ast.Attribute) and node.attr == "config":
        return names.get(".config", {""})
    if isinstance(node, ast.Attribute):
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        held = names.get(f".{node.attr}", set()) if is_own else set()
        paths = {f"{outer}.{node.attr}".lstrip(".") for outer in section_of(node.value, names)}
        return held | (paths & set(SECTIONS))
    return set()


def section_names(module: Module) -> dict[str, set[str]]:
    """Variables and attributes (".name") that hold the configuration or one of its sections."""
    names: dict[str, set[str]] = {}
    for node in module.nodes:
        annotated = None
        if isinstance(node, ast.arg) and node.annotation is not None:
            annotated = (node.arg, node.annotation)
        elif isinstance(node, ast.AnnAssign):
            annotated = (_target(node.target), node.annotation)
        if annotated and annotated[0]:
            for word in ast.unparse(annotated[1]).replace("'", "").replace('"', "").replace("|", " ").split():
                kind = word.rpartition(".")[2]
                if kind == "RunConfig" or kind in CLASS_OF:
                    for name in (annotated[0], f".{annotated[0]}"):
                        names.setdefault(name, set()).update(CLASS_OF.get(kind, {""}))
    for _ in range(3):  # an assignment may lean on an earlier one
        for node in module.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    _assign(target, node.value, names)
    return names


def _assign(target: ast.expr, value: ast.expr, names: dict[str, set[str]]) -> None:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one_target, one_value in zip(target.elts, value.elts, strict=False):
            _assign(one_target, one_value, names)
        return
    name = _target(target)
    is_loaded = isinstance(value, ast.Call) and ast.unparse(value.func) in ("load", "RunConfig")
    held = {""} if is_loaded else section_of(value, names)
    if name and held:
        names.setdefault(name, set()).update(held)


def _target(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return f".{node.attr}"
    return ""


def all_reads() -> set[str]:
    """What rlrun reads outside its configuration package (checks and help are no effect)."""
    return set().union(*(reads(module) for module in modules() if not module.name.startswith("rlrun.config")))


def test_every_key_is_read() -> None:
    dead = {key.path for key in all_keys()} - all_reads() - READ_IN_CONFIG
    assert sorted(dead) == []


def test_sections_have_classes_of_their_own() -> None:
    """The reader above tells a section by its class, and knows all sections."""
    assert set(sections()) == set(SECTIONS)
    assert len({kind.__name__ for kind in SECTIONS.values()}) == len(SECTIONS)


def test_the_reader_finds_what_is_read() -> None:
    module = snippet(
        "rlrun.x",
        "def f(config: RunConfig, env: EnvConfig):\n"
        "    config.actor.lr, env.num_envs, config.seed\n"
        "    algorithm = config.algorithm\n"
        "    algorithm.gamma\n"
        "    wanted = env.section(GymnasiumConfig)\n"
        "    wanted.id, config.env.section(GymnasiumConfig).kwargs\n"
        "class C:\n"
        "    def __init__(self, config: RunConfig):\n"
        "        self.config, self._policy = config, config.policy\n"
        "    def g(self, session):\n"
        "        self.config.sft.lr, self._policy.path, session.config.demos.path\n",
    )
    assert reads(module) >= {
        "actor.lr",
        "env.num_envs",
        "seed",
        "algorithm.gamma",
        "env.gymnasium.id",
        "env.gymnasium.kwargs",
        "sft.lr",
        "policy.path",
        "demos.path",
    }


def test_the_reader_finds_a_dead_key() -> None:
    """Another section's key of the same name, a write, or a bare word is not a read."""
    module = snippet(
        "rlrun.x",
        "def f(config: RunConfig, other):\n"
        "    config.sft.lr\n"
        "    other.noise\n"
        "    config.env.num_envs = 3\n"
        "    print('weight_decay', num_steps)\n",
    )
    found = reads(module)
    assert "sft.lr" in found
    assert not found & {"actor.lr", "demos.noise", "env.num_envs", "actor.weight_decay", "num_steps"}
