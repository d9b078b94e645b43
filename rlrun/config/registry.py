"""Kinds of simulators, policies and algorithms, found by name among installed packages or as `module:ATTRIBUTE`.

A package adds a kind by an entry point; rlrun declares its own in the same way::

    [project.entry-points."rlrun.simulators"]
    my_world = "my_package.spec:SPEC"

The object that an entry point names is the kind's spec. Importing its module must be cheap: no torch, Ray or simulator.
What does import them stands in the spec as text, "module:Class" or "module:function", and is imported when it is used.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rlrun.config.sections import Section, load_object
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    from rlrun.config.schema import RunConfig


class KindSpec(Protocol):
    """The part of a kind's spec that the configuration needs; a spec may be an instance or a class."""

    name: str  # as in YAML; its settings are the section `env.<name>` (or policy, algorithm)
    section: type[Section] | None  # dataclass of its settings; None: it has none

    def check(self, config: RunConfig) -> Iterator[RunError]:
        """Yield the faults of a composed configuration that names this kind. Called before anything starts."""


S = TypeVar("S", bound=KindSpec)


@dataclass(frozen=True)
class Registry(Generic[S]):
    """The specs of one entry-point group.

    Example: Registry("rlrun.simulators", "simulator", "env.simulator").get("libero").section is LiberoConfig
    """

    group: str  # group of entry points
    noun: str  # for messages
    key: str  # the configuration key that chooses a kind

    @property
    def parent(self) -> str:
        """Return the section of the key. Example: "env"."""
        return self.key.partition(".")[0]

    @property
    def selector(self) -> str:
        """Return the key inside its section. Example: "simulator"."""
        return self.key.partition(".")[2]

    @cached_property
    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for one in sorted(entry_points(group=self.group)):
            if one not in found.setdefault(one.name, []):
                found[one.name].append(one)
        return found

    @cached_property
    def _specs(self) -> dict[str, S]:
        """Return the specs by the names with which they were requested."""
        return {}

    def names(self) -> list[str]:
        """Return the names of the installed kinds, without an import."""
        return list(self._entry_points)

    def get(self, name: str) -> S:
        """Return the spec of a kind; imports its module. Raises RunError if it is unknown or cannot be imported."""
        if name not in self._specs:
            self._specs[name] = self._load(name)
        return self._specs[name]

    def part(self, spec: S, field: str) -> Any:
        """Return what the field of a spec names as "module:ATTRIBUTE". Raises RunError if it cannot be imported.

        Example: POLICIES.part(spec, "policy") is the class that spec.policy="my_package.policy:MyPolicy" names.
        """
        return self._imported(spec.name, getattr(spec, field))

    def chosen(self, config: RunConfig) -> S:
        """Return the spec of the kind that a configuration names."""
        name = getattr(getattr(config, self.parent), self.selector)
        return self.get(name)

    def in_tree(self, tree: Mapping[str, Any]) -> str | None:
        """Return the name of the kind in a configuration without types; None: it names none."""
        section = tree.get(self.parent)
        name = section.get(self.selector) if isinstance(section, dict) else None
        return None if name is None else str(name)

    def location(self, name: str) -> str:
        """Return the module:ATTRIBUTE of a spec, for interpreters without the entry points of this one."""
        return name if ":" in name else self._entry_point(name).value

    def installed(self) -> Iterator[S]:
        """Yield every installed spec that can be imported. A broken package affects only runs that name its kind."""
        for name in self.names():
            try:
                yield self.get(name)
            except RunError:
                continue

    def config_folders(self) -> Iterator[Path]:
        """Yield the folders `configs` beside the modules of installed specs, with the YAML of their packages."""
        for name in self.names():
            if name not in self._specs:
                continue
            point = self._entry_point(name)
            module = import_module(point.module)
            folder = Path(str(module.__file__)).parent / "configs"
            if folder.is_dir():
                yield folder

    def _entry_point(self, name: str) -> EntryPoint:
        found = self._entry_points.get(name, [])
        if len(found) == 1:
            return found[0]
        if found:
            packages = ", ".join(one.dist.name if one.dist else one.value for one in found)
            raise RunError(
                f"Two packages bring a {self.noun} of the name '{name}'.",
                key=self.key,
                value=name,
                cause=f"They are {packages}.",
                remedy=f"Uninstall one, or name the spec itself: {self.key}={found[0].value}.",
            )
        close = difflib.get_close_matches(name, self.names(), n=1)
        known = ", ".join(self.names()) or f"none: `pip install -e .` declares those of rlrun in group {self.group}"
        raise RunError(
            f"There is no {self.noun} '{name}'.",
            key=self.key,
            value=name,
            cause=f"Installed: {known}.",
            remedy=f"Did you mean {self.key}={close[0]}?"
            if close
            else f"Install the package that brings it, or write {self.key}=module:ATTRIBUTE.",
        )

    def _load(self, name: str) -> S:
        location = self.location(name)
        spec = self._imported(name, location)
        fault = self._fault(spec, None if ":" in name else name)
        if fault:
            raise RunError(
                f"{location} does not describe a {self.noun}.",
                key=self.key,
                value=name,
                cause=fault,
                remedy="docs/extending.md shows what a spec holds.",
            )
        return spec

    def _imported(self, name: str, location: str) -> Any:
        try:
            return load_object(location)
        except Exception as error:  # code from outside rlrun may raise anything; the kind cannot be used then
            raise RunError(
                f"The {self.noun} '{name}' cannot be imported.",
                key=self.key,
                value=name,
                cause=f"{location}: {type(error).__name__}: {error}",
                remedy="Correct the name, or install what its module imports. A file is found in the working "
                "directory, in --config-dir, and in the folders of python_path.",
            ) from error

    def _fault(self, spec: Any, name: str | None) -> str | None:
        missing = [part for part in ("name", "section", "check") if not hasattr(spec, part)]
        if missing:
            return f"It has no {', '.join(missing)}."
        if not str(spec.name).isidentifier():
            return f"Its name is {spec.name!r}; a section of the configuration needs an identifier."
        if name not in (None, spec.name):
            return f"Its entry point is called '{name}', and its name is '{spec.name}'."
        section = spec.section
        if section is not None and not (isinstance(section, type) and issubclass(section, Section)):
            return f"Its section is {section!r}, which is no subclass of rlrun.config.sections.Section."
        if section is not None and not is_dataclass(section):
            return f"Its section {section.__name__} is no dataclass."
        return None


def packages() -> tuple[str, ...]:
    """Return the distributions whose versions affect the results of installed kinds."""
    specs = [spec for registry in REGISTRIES for spec in registry.installed()]
    return tuple(dict.fromkeys(name for spec in specs for name in getattr(spec, "packages", ())))


SIMULATORS: Registry[Any] = Registry("rlrun.simulators", "simulator", "env.simulator")
POLICIES: Registry[Any] = Registry("rlrun.policies", "policy", "policy.kind")
ALGORITHMS: Registry[Any] = Registry("rlrun.algorithms", "algorithm", "algorithm.name")
REGISTRIES = (SIMULATORS, POLICIES, ALGORITHMS)
