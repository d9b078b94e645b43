"""Every configuration key as data: path, type, default, comment; feeds --help and "did you mean"."""

from __future__ import annotations

import difflib
import inspect
import io
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

from rlrun.config import schema
from rlrun.config.sealing import Section


@dataclass(frozen=True)
class Key:
    """One key. Example: Key("env.num_envs", "int", "16", "over all workers", is_free=False)."""

    path: str
    type: str  # as in the schema; an enum as its choices "a | b"
    default: str  # as in YAML
    comment: str  # from the schema's source
    is_free: bool  # a mapping whose own keys are free, such as placement.roles


@cache
def all_keys() -> tuple[Key, ...]:
    """All keys in the order of the schema."""
    return tuple(_keys_of(schema.RunConfig, ""))


@cache
def sections() -> tuple[str, ...]:
    """The paths of all sections, such as "env"."""
    return tuple(_sections_of(schema.RunConfig, ""))


def is_known(path: str) -> bool:
    """Whether `path` is a key, a section, or lies below a free mapping."""
    return path in sections() or any(
        path == key.path or (key.is_free and path.startswith(key.path + ".")) for key in all_keys()
    )


def nearest(path: str) -> str | None:
    """The known key or section that `path` most probably means; None: nothing is similar."""
    known = [key.path for key in all_keys()] + list(sections())
    leaf = path.rsplit(".", 1)[-1]
    by_leaf = {known_path: _similarity(leaf, known_path.rsplit(".", 1)[-1]) for known_path in known}
    best = max(known, key=lambda known_path: (by_leaf[known_path] + _similarity(path, known_path), -len(known_path)))
    return best if max(by_leaf[best], _similarity(path, best)) >= 0.6 else None


def _similarity(left: str, right: str) -> float:
    return difflib.SequenceMatcher(None, left, right).ratio()


def _sections_of(section: type, prefix: str) -> Iterator[str]:
    for name, hint in get_type_hints(section).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            yield prefix + name
            yield from _sections_of(hint, f"{prefix}{name}.")


def _keys_of(section: type, prefix: str) -> Iterator[Key]:
    hints = get_type_hints(section)
    comments = _comments()
    for field in fields(section):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from _keys_of(hint, f"{prefix}{field.name}.")
            continue
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        comment = comments.get((section.__name__, field.name), "")
        is_free = getattr(hint, "__origin__", hint) is dict
        yield Key(prefix + field.name, _type_name(hint, str(field.type)), as_yaml(default), comment, is_free)


def _type_name(hint: Any, annotation: str) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(member.name for member in hint)
    return annotation


def as_yaml(value: Any) -> str:
    """A default as one writes it in YAML. Example: None -> "null", [1, 2] -> "[1, 2]"."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list):
        return f"[{', '.join(as_yaml(item) for item in value)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "{}" if value == {} else str(value)


@cache
def _comments() -> dict[tuple[str, str], str]:
    """(class, field) -> the comment behind the field in the schema's source."""
    found: dict[tuple[str, str], str] = {}
    class_name = field_name = ""
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(schema)).readline):
        words = token.line.split()
        if words[:1] == ["class"]:
            class_name = words[1].split("(")[0].rstrip(":")
        elif token.type == tokenize.NAME and token.start[1] == 4 and token.line[token.end[1]] == ":":
            field_name = token.string
        elif token.type == tokenize.COMMENT and field_name and token.start[1] > 4:
            found[class_name, field_name] = token.string.lstrip("# ")
    return found
