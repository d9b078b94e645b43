"""Kinds of simulators, policies and algorithms, found by name among installed packages or as `module:ATTRIBUTE`.

A package adds a kind by an entry point; rlrun declares its own in the same way::

    [project.entry-points."rlrun.simulators"]
    my_world = "my_package.spec:SPEC"

The object that an entry point names is the kind's spec. Importing its module must be cheap: no torch, Ray or simulator.
What does import them stands in the spec as text, "module:Class" or "module:function", and is imported when it is used.
A configuration is composed by a schema with the settings of all kinds; RunConfig keeps those of the chosen ones only:
`config.env.section(LiberoConfig)`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rlrun.config.faults import no_effect
from rlrun.config.schema import AlgorithmConfig, ClusterKind, RunConfig
from rlrun.config.sections import AUTO, NO_KEY, Section, auto_names, freeze, load_object
from rlrun.system.errors import RunError, RunErrors

CHOSEN = {  # section -> its keys
    "env": ("num_workers",),
    "rollout": ("num_workers",),
    "actor": ("num_workers", "micro_batch_size", "lr_warmup_steps"),
    "sft": ("lr_warmup_steps",),
}
MOST_ROWS = 256  # of a micro-batch: small policies compute faster in large ones; recipes of large policies set it


class KindSpec(Protocol):
    """The part of a kind's spec that the configuration needs; a spec may be an instance or a class."""

    name: str  # as in YAML; its settings are the section `env.<name>` (or policy, algorithm)
    section: type[Section] | None  # dataclass of its settings; None: it has none

    def check(self, config: RunConfig) -> Iterator[RunError]:
        """Yield the faults of a composed configuration that names this kind. Called before anything starts."""


def no_faults(config: RunConfig) -> Iterator[RunError]:
    """Yield no faults: the check of a kind without further conditions."""
    return iter(())


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
        by_name: dict[str, list[EntryPoint]] = {}
        for entry in sorted(entry_points(group=self.group)):
            if entry not in by_name.setdefault(entry.name, []):
                by_name[entry.name].append(entry)
        return by_name

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
        """Return the object that a spec's field names as "module:ATTRIBUTE". Raises RunError if it cannot be imported.

        field: of the spec, or of one of its parts, "resources.node_checks".
        Example: POLICIES.part(spec, "policy") is the class that spec.policy="my_package.policy:MyPolicy" names.
        """
        return self._imported(spec.name, attrgetter(field)(spec))

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

    def shipped(self) -> Iterator[S]:
        """Yield rlrun's own specs, for documents and tests that must not depend on what else is installed."""
        for name in self.names():
            if self.location(name).startswith("rlrun."):
                yield self.get(name)

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
        entries = self._entry_points.get(name, [])
        if len(entries) == 1:
            return entries[0]
        if entries:
            packages = ", ".join(entry.dist.name if entry.dist else entry.value for entry in entries)
            raise RunError(
                f"Two packages bring a {self.noun} of the name '{name}'.",
                key=self.key,
                value=name,
                cause=f"They are {packages}.",
                remedy=f"Uninstall one, or name the spec itself: {self.key}={entries[0].value}.",
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
    """Return the distributions whose versions affect the results of installed simulators."""
    return tuple(dict.fromkeys(name for spec in SIMULATORS.installed() for name in spec.process.packages))


SIMULATORS: Registry[Any] = Registry("rlrun.simulators", "simulator", "env.simulator")
POLICIES: Registry[Any] = Registry("rlrun.policies", "policy", "policy.kind")
ALGORITHMS: Registry[Any] = Registry("rlrun.algorithms", "algorithm", "algorithm.name")
REGISTRIES = (SIMULATORS, POLICIES, ALGORITHMS)


# --- the schema with the settings of all kinds ---------------------------------------------------


def _composed(name: str, section: Any) -> list[tuple[str, Any, Any]]:
    """Return the fields of a section that take more while it is composed, for make_dataclass: null, or `auto`."""
    words = auto_names(section)
    counts = CHOSEN.get(name, ())
    composed: list[tuple[str, Any, Any]] = []
    for entry in fields(section):
        if entry.name in counts:
            kind: Any = int | str | None if entry.name in words else int | None
            composed.append((entry.name, kind, field(default=None, metadata=entry.metadata)))
        elif entry.name in words:
            composed.append(
                (entry.name, bool | float | int | str, field(default=entry.default, metadata=entry.metadata))
            )
    return composed


def fill_counts(config: RunConfig) -> None:
    """Replace each null of the chosen keys. Ranges of the counts that the user wrote are checked later."""
    usual = RunConfig()
    samples = config.algorithm.global_batch_size
    workers = 1 if config.cluster.kind is ClusterKind.local else usual.actor.num_workers
    most = max(1, config.env.num_envs // envs_together(config.algorithm))
    if "env.num_workers" in config.auto:  # until the plan chooses: the most, so that no other key seems wrong
        config.env.num_workers = most
    _fill(config.env, "num_workers", _divisor(workers, most))
    _fill(config.rollout, "num_workers", min(workers, max(1, config.env.num_workers)))
    _fill(config.actor, "num_workers", _divisor(workers, config.env.num_envs, samples, config.sft.batch_size))
    rows = samples // max(1, config.actor.num_workers)
    _fill(config.actor, "micro_batch_size", _divisor(MOST_ROWS, rows))
    _fill(config.sft, "lr_warmup_steps", max(0, min(usual.sft.lr_warmup_steps, config.sft.num_steps // 4)))
    _fill(config.actor, "lr_warmup_steps", _rl_warmup(config))
    _fill(config.actor, "activation_checkpointing", 1.0)
    fill_lora(config)


def _rl_warmup(config: RunConfig) -> int:
    """Return the optimizer steps over which the learning rate of reinforcement learning rises.

    Adam's first step is as large as the rate allows, whatever the gradient: a policy that is good already loses by it.
    """
    is_imitated = POLICIES.get(config.policy.kind).needs_demonstrations and config.sft.num_steps > 0
    is_trained = config.policy.path is not None or is_imitated
    return getattr(ALGORITHMS.get(config.algorithm.name), "lr_warmup_steps", 0) if is_trained else 0


def envs_together(algorithm: AlgorithmConfig) -> int:
    """Return the number of consecutive envs of one env worker: a group, where groups without signal are left out."""
    if not algorithm.filter_groups.enable:
        return 1
    return max(1, ALGORITHMS.get(algorithm.name).rollout(algorithm).group_size)


def with_usual_numbers(config: RunConfig) -> RunConfig:
    """Return a frozen copy of a configuration in which keys of `auto` have the numbers that null stands for."""
    filled = replace(config, auto=[])
    for name in ("env", "rollout", "actor"):
        section = replace(getattr(config, name))
        for key in auto_names(type(section)):
            if f"{name}.{key}" in config.auto:
                setattr(section, key, None)
        setattr(filled, name, section)
    fill_counts(filled)
    freeze(filled)
    return filled


def _take_auto(config: RunConfig) -> list[str]:
    """Replace the word `auto` by null, for `fill_counts`, and truth values by shares. Returns the keys to be chosen.

    On Ray null chooses the number of actor ranks too, since ranks beyond the accelerators are refused.
    """
    config.actor.activation_checkpointing = _share(config.actor.activation_checkpointing)
    replaced = []
    for name in ("env", "rollout", "actor"):
        section = getattr(config, name)
        for key in auto_names(type(section)):
            value = getattr(section, key)
            is_null = value is None and (name, key) == ("actor", "num_workers")
            if value == AUTO or (is_null and config.cluster.kind is ClusterKind.ray):
                replaced.append(f"{name}.{key}")
                setattr(section, key, None)
    return replaced


def _share(value: Any) -> Any:
    return float(value) if isinstance(value, (bool, int)) else value


def fill_lora(config: RunConfig) -> None:
    """Replace nulls of actor.lora by the modules that the policy's spec names; a kind without adapters names none."""
    parts = POLICIES.get(config.policy.kind).lora
    if parts is not None:
        _fill(config.actor.lora, "targets", list(parts.targets))
        _fill(config.actor.lora, "trained_whole", list(parts.trained_whole))


def _fill(section: Any, key: str, value: object) -> None:
    if getattr(section, key) is None:
        setattr(section, key, value)


def _divisor(at_most: int, *numbers: int) -> int:
    """Return the largest number up to `at_most` that divides all others."""
    return next(divisor for divisor in range(at_most, 0, -1) if not any(number % divisor for number in numbers))


@cache
def schema_with(chosen: tuple[tuple[str, str], ...] = ()) -> type[RunConfig]:
    """Return RunConfig with the sections of all installed kinds, and of the chosen ones.

    chosen: pairs such as ("env.simulator", "my_world:SPEC"). Raises RunError for one that cannot be imported.
    """
    extended: list[tuple[str, type, Any]] = []
    for registry in REGISTRIES:
        specs = list(registry.installed()) + [registry.get(name) for key, name in chosen if key == registry.key]
        parent = type(getattr(RunConfig(), registry.parent))
        section = _with_kinds(parent, {spec.name: spec for spec in specs}, registry.parent)
        extended.append((registry.parent, section, field(default_factory=section)))
    for name in _chosen_sections():
        parent = type(getattr(RunConfig(), name))
        section = make_dataclass(parent.__name__, _composed(name, parent), bases=(parent,))
        extended.append((name, section, field(default_factory=section)))
    return make_dataclass("RunConfig", extended, bases=(RunConfig,), namespace={"__doc__": RunConfig.__doc__})


def _with_kinds(parent: type[Section], specs: Mapping[str, KindSpec], path: str) -> type[Section]:
    """Return `parent` with a field for every spec that has a section."""
    names = {entry.name for entry in fields(parent)}  # type: ignore[arg-type]
    for name in names & set(specs):
        raise RunError(
            f"The name '{name}' of a kind is a key of the section '{path}' already.",
            key=f"{path}.{name}",
            remedy="Give the kind another name.",
        )
    added = [(n, s.section, field(default_factory=s.section)) for n, s in specs.items() if s.section is not None]
    return make_dataclass(parent.__name__, [*_composed(path, parent), *added], bases=(parent,))


def _chosen_sections() -> list[str]:
    """Return the sections with chosen keys that have no kinds."""
    return [name for name in CHOSEN if name not in {registry.parent for registry in REGISTRIES}]


def finalize(composed: RunConfig) -> RunConfig:
    """Return the RunConfig of a composed schema, whose sections keep only the settings of the chosen kind.

    Chosen keys that are null get their numbers.
    """
    values = {
        entry.name: getattr(composed, entry.name) for entry in fields(RunConfig) if not entry.metadata.get(NO_KEY)
    }
    for registry in REGISTRIES:
        values[registry.parent] = _finalize(values[registry.parent], registry.chosen(composed))
    for name in _chosen_sections():
        values[name] = _finalize(values[name])
    config = RunConfig(**values)
    config.auto = _take_auto(config)
    fill_counts(config)
    return config


def require_chosen_kinds(overrides: Iterable[str], composed: RunConfig) -> None:
    """Raise RunError for an override of a kind that is not chosen, since it would have no effect.

    Example: ["env.libero.task_ids=[0]"] with env.simulator=embedded
    """
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        parent, _, rest = key.partition(".")
        kind, is_below, _ = rest.partition(".")
        for registry in REGISTRIES:
            chosen = registry.chosen(composed).name
            others = {spec.name for spec in registry.installed() if spec.section is not None} - {chosen}
            if parent == registry.parent and is_below and kind in others:
                raise RunError(
                    f"{key} has no effect: {registry.key} is {chosen}.",
                    key=key,
                    value=value,
                    remedy=f"Remove it, or set {registry.key}={kind}.",
                )


def require_read_keys(overrides: Iterable[str], config: RunConfig) -> None:
    """Raise RunError or RunErrors for overrides of keys that the chosen algorithm does not read, unless to the default.

    Files may have such keys, for other algorithms. Example: ["actor.value_lr=0.1"] with algorithm.name=grpo
    """
    name = config.algorithm.name
    usual = RunConfig()
    given = [override.lstrip("+").partition("=")[0] for override in overrides]
    because = f"algorithm.name={name} does not read it"
    remedy = "Drop it, or take another algorithm."
    unread = [key for key in getattr(ALGORITHMS.get(name), "without_effect", ()) if key in given]
    faults = []
    for key in unread:
        value = attrgetter(key)(config)
        if value != attrgetter(key)(usual):
            shown = value.name if isinstance(value, Enum) else "null" if value is None else value
            faults.append(no_effect(key, shown, because, remedy))
    if faults:
        raise faults[0] if len(faults) == 1 else RunErrors(faults)


def _finalize(section: Any, spec: KindSpec | None = None) -> Section:
    kind = type(section).__bases__[0]
    values = {entry.name: getattr(section, entry.name) for entry in fields(kind)}
    if spec is not None and spec.section is not None:
        values["sections"] = {spec.name: getattr(section, spec.name)}
    return kind(**values)
