"""A configuration section as plain data and back, for wires: no YAML, no pickle; also under a simulator's Python."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar, get_args, get_type_hints

from rlrun.config.sealing import Section, seal

SectionType = TypeVar("SectionType", bound=Section)


def to_plain(value: Any) -> Any:
    """Sections become maps, enums their values. Example: to_plain(EnvConfig())["simulator"] == "mujoco"."""
    if isinstance(value, Section):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[SectionType], data: dict[str, Any]) -> SectionType:
    """The sealed section that `to_plain` took apart. Raises KeyError, ValueError or TypeError for other data."""
    hints = get_type_hints(kind)
    unknown = set(data) - set(hints)
    if unknown:
        raise KeyError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    section = kind(**{name: _typed(hints[name], value) for name, value in data.items()})
    seal(section)
    return section


def _typed(hint: Any, value: Any) -> Any:
    for one in (hint, *get_args(hint)):
        if isinstance(one, type) and issubclass(one, Section) and isinstance(value, dict):
            return from_plain(one, value)
        if isinstance(one, type) and issubclass(one, Enum) and value is not None:
            return [one(item) for item in value] if isinstance(value, list) else one(value)
    return value
