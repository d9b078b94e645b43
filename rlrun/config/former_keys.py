"""Keys of earlier versions in a recorded configuration: moved to where they are now, or left out if they do nothing."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

from rlrun.config.registry import REGISTRIES, Registry
from rlrun.config.schema import RunConfig
from rlrun.config.sections import KindSection, Section
from rlrun.system.errors import RunError


def moved(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded tree whose keys in `to_kinds` are in the section of the chosen kind, or gone if it has none.

    A module:ATTRIBUTE is not imported, since the tree may be from elsewhere: its keys are gone.
    Example: {"env": {"simulator": "libero", "cameras": […]}} has them as env.libero.cameras afterwards.
    """
    for registry in REGISTRIES:
        section = type(getattr(RunConfig(), registry.parent))
        below = tree.get(registry.parent)
        if isinstance(below, dict) and _is_former(section, below):
            tree = tree | {registry.parent: _moved(section, below, registry, registry.in_tree(tree))}
    return tree


def _is_former(section: type[KindSection], below: dict[str, Any]) -> bool:
    """Return whether a section has one of the keys that only kinds have now."""
    present = {entry.name for entry in fields(section)}
    return any(key in below for key in section.to_kinds if key not in present)


def _moved(
    section: type[KindSection], below: dict[str, Any], registry: Registry[Any], chosen: str | None
) -> dict[str, Any]:
    name = chosen or str(getattr(section(), registry.selector))
    taken = {key: below[key] for key in section.to_kinds if key in below and key in _keys_of(registry, name)}
    kept = {key: value for key, value in below.items() if key not in section.to_kinds}
    other_meaning = [entry for entry in fields(section) if entry.name in section.to_kinds]
    kept |= {entry.name: entry.default for entry in other_meaning}
    own = kept.get(name)
    return kept | {name: taken | (own if isinstance(own, dict) else {})} if taken else kept


def _keys_of(registry: Registry[Any], name: str) -> set[str]:
    """Return the keys of an installed kind; none for one that cannot be imported."""
    try:
        kind = registry.get(name).section if name in registry.names() else None
    except RunError:
        return set()
    return set() if kind is None else {entry.name for entry in fields(kind)}


def without_harmless(section: type[Section], tree: dict[str, Any]) -> dict[str, Any]:
    """Return a tree without the removed keys of a section and of those below it, if their values are harmless."""
    hints = get_type_hints(section)
    kept: dict[str, Any] = {}
    for key, value in tree.items():
        removed = section.removed.get(key)
        if removed is not None and value in removed.harmless:
            continue
        hint = hints.get(key)
        if isinstance(hint, type) and issubclass(hint, Section) and isinstance(value, dict):
            kept[key] = without_harmless(hint, value)
        else:
            kept[key] = value
    return kept
