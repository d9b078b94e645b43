"""Conversion of configuration sections to plain data and back, without YAML or pickle, for a simulator's Python too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar, get_args, get_type_hints

from rlrun.config.sealing import OpenSection, Section, seal

SectionType = TypeVar("SectionType", bound=Section)


def to_plain(value: Any) -> Any:
    """Return sections as dicts and enums as their values. Example: to_plain(EnvConfig())["simulator"] == "embedded"."""
    if isinstance(value, Section):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(
    kind: type[SectionType], data: dict[str, Any], sections: Mapping[str, type[Section]] = {}
) -> SectionType:
    """Return the sealed section from the result of `to_plain`. Raises KeyError, ValueError or TypeError for other data.

    sections: the dataclasses of an OpenSection's kinds, by name.
    """
    hints = get_type_hints(kind)
    unknown = set(data) - set(hints)
    if unknown:
        raise KeyError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    values = {name: _typed(hints[name], value) for name, value in data.items()}
    if issubclass(kind, OpenSection):
        values["sections"] = {name: from_plain(sections[name], own) for name, own in data.get("sections", {}).items()}
    section = kind(**values)
    seal(section)
    return section


def _typed(hint: Any, value: Any) -> Any:
    for one in (hint, *get_args(hint)):
        if isinstance(one, type) and issubclass(one, Section) and isinstance(value, dict):
            return from_plain(one, value)
        if isinstance(one, type) and issubclass(one, Enum) and value is not None:
            return [one(item) for item in value] if isinstance(value, list) else one(value)
    return value
