"""The schema for composing a configuration: RunConfig with a section for each kind, and null for chosen counts.

RunConfig itself keeps only the section of the kind that is chosen: `config.env.section(LiberoConfig)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields, make_dataclass
from functools import cache
from typing import Any, TypeVar

from rlrun.config.registry import POLICIES, REGISTRIES, KindSpec
from rlrun.config.schema import ClusterKind, RunConfig
from rlrun.config.sections import OpenSection, Section
from rlrun.system.errors import RunError

CHOSEN = {  # section -> its keys
    "env": ("num_workers",),
    "rollout": ("num_workers",),
    "actor": ("num_workers", "micro_batch_size"),
    "sft": ("lr_warmup_steps",),
}


MOST_ROWS = 256  # of a micro-batch: small policies compute faster in large ones; recipes of large policies set it


def nullable(section: str) -> list[tuple[str, Any, Any]]:
    """Return the fields that make the chosen keys of a section null by default, for make_dataclass."""
    return [(key, int | None, field(default=None)) for key in CHOSEN.get(section, ())]


def choose(config: RunConfig) -> None:
    """Replace each null of the chosen keys, and of those of LoRA. Counts are as the user wrote them: ranges are checked
    later."""
    usual, samples = RunConfig(), config.algorithm.global_batch_size
    workers = 1 if config.cluster.kind is ClusterKind.local else usual.actor.num_workers
    _fill(config.env, "num_workers", _divisor(workers, config.env.num_envs))
    _fill(config.rollout, "num_workers", min(workers, max(1, config.env.num_workers)))
    _fill(config.actor, "num_workers", _divisor(workers, config.env.num_envs, samples, config.sft.batch_size))
    rows = samples // max(1, config.actor.num_workers)
    _fill(config.actor, "micro_batch_size", _divisor(MOST_ROWS, rows))
    _fill(config.sft, "lr_warmup_steps", max(0, min(usual.sft.lr_warmup_steps, config.sft.num_steps // 4)))
    choose_parts(config)


def choose_parts(config: RunConfig) -> None:
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
    return next(one for one in range(at_most, 0, -1) if not any(number % one for number in numbers))


Opened = TypeVar("Opened", bound=OpenSection)


@cache
def schema_with(chosen: tuple[tuple[str, str], ...] = ()) -> type[RunConfig]:
    """Return RunConfig with the sections of all installed kinds, and of the chosen ones.

    chosen: pairs such as ("env.simulator", "my_world:SPEC"). Raises RunError for one that cannot be imported.
    """
    opened: list[tuple[str, type, Any]] = []
    for registry in REGISTRIES:
        specs = list(registry.installed()) + [registry.get(name) for key, name in chosen if key == registry.key]
        parent = type(getattr(RunConfig(), registry.parent))
        section = _open(parent, {spec.name: spec for spec in specs}, registry.parent)
        opened.append((registry.parent, section, field(default_factory=section)))
    for name in _chosen_sections():
        parent = type(getattr(RunConfig(), name))
        section = make_dataclass(parent.__name__, nullable(name), bases=(parent,))
        opened.append((name, section, field(default_factory=section)))
    return make_dataclass("RunConfig", opened, bases=(RunConfig,), namespace={"__doc__": RunConfig.__doc__})


def _open(parent: type[Section], specs: Mapping[str, KindSpec], path: str) -> type[Section]:
    """Return `parent` with a field for every spec that has a section."""
    own = {one.name for one in fields(parent)}  # type: ignore[arg-type]
    for name in own & set(specs):
        raise RunError(
            f"The name '{name}' of a kind is a key of the section '{path}' already.",
            key=f"{path}.{name}",
            remedy="Give the kind another name.",
        )
    added = [(n, s.section, field(default_factory=s.section)) for n, s in specs.items() if s.section is not None]
    return make_dataclass(parent.__name__, [*nullable(path), *added], bases=(parent,))


def _chosen_sections() -> list[str]:
    """Return the sections with chosen keys that no kind opens."""
    return [name for name in CHOSEN if name not in {registry.parent for registry in REGISTRIES}]


def closed(composed: RunConfig) -> RunConfig:
    """Return the RunConfig of a composed schema: open sections keep their own keys and the chosen kind's section.

    Chosen keys that are null get their numbers.
    """
    values = {one.name: getattr(composed, one.name) for one in fields(RunConfig)}
    for registry in REGISTRIES:
        values[registry.parent] = _close(values[registry.parent], registry.chosen(composed))
    for name in _chosen_sections():
        values[name] = _close(values[name])
    config = RunConfig(**values)
    choose(config)
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


def _close(section: Any, spec: KindSpec | None = None) -> Section:
    kind = type(section).__bases__[0]
    values = {one.name: getattr(section, one.name) for one in fields(kind)}
    if spec is not None and spec.section is not None:
        values["sections"] = {spec.name: getattr(section, spec.name)}
    return kind(**values)
