"""Every configuration key as data (path, type, default, comment), for --help and suggestions of similar keys."""

from __future__ import annotations

import difflib
import inspect
import io
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

from rlrun.config.open_schema import schema_with
from rlrun.config.sealing import NO_KEY, Section

Schema = Any  # a configuration dataclass, or None; to mypy, types of dataclasses cannot be keys of a cache


@dataclass(frozen=True)
class Key:
    """One key. Example: Key("env.num_envs", "int", "16", "over all workers", is_free=False)."""

    path: str
    type: str  # as in the schema; an enum as its choices "a | b"
    default: str  # as in YAML
    comment: str  # from the schema's source
    is_free: bool  # a mapping whose own keys are free, such as placement.roles


@cache
def all_keys(schema: Schema = None) -> tuple[Key, ...]:
    """Return all keys of a schema in its order. None: the schema with the sections of all installed kinds."""
    return tuple(_keys_of(schema or schema_with(), ""))


@cache
def sections(schema: Schema = None) -> tuple[str, ...]:
    """Return the paths of all sections, such as "env"."""
    return tuple(_sections_of(schema or schema_with(), ""))


def is_known(path: str, schema: Schema = None) -> bool:
    """Return whether `path` is a key, a section, or below a free mapping."""
    return path in sections(schema) or any(
        path == key.path or (key.is_free and path.startswith(key.path + ".")) for key in all_keys(schema)
    )


def suggestion(path: str, schema: Schema = None) -> str | None:
    """Return what a person may have meant by an unknown key, as a sentence; None: nothing is similar.

    Example: "Did you mean 'actor.lr' or 'sft.lr'?" for lr; the keys of the section for algorithm.foo.
    """
    keys = [key.path for key in all_keys(schema)]
    ending = [known for known in keys if known.endswith(f".{path}")]
    if ending:
        return f"Did you mean {' or '.join(f'{known!r}' for known in ending[:6])}?"
    near = _nearest(path, [*keys, *sections(schema)])
    if near is not None:
        return f"Did you mean '{near}'?"
    section = path.rpartition(".")[0]
    inside = [known.removeprefix(f"{section}.") for known in keys if known.startswith(f"{section}.")]
    return f"The keys of {section} are {', '.join(inside)}." if section and inside else None


def _nearest(path: str, known: list[str]) -> str | None:
    """Return the most similar key or section, whose last part must be similar by itself."""
    leaf = path.rsplit(".", 1)[-1]
    by_leaf = {known_path: _similarity(leaf, known_path.rsplit(".", 1)[-1]) for known_path in known}
    best = max(known, key=lambda known_path: (by_leaf[known_path] + _similarity(path, known_path), -len(known_path)))
    return best if by_leaf[best] >= 0.6 else None


def _similarity(left: str, right: str) -> float:
    return difflib.SequenceMatcher(None, left, right).ratio()


def _sections_of(section: type, prefix: str) -> Iterator[str]:
    for name, hint in get_type_hints(section).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            yield prefix + name
            yield from _sections_of(hint, f"{prefix}{name}.")


def _keys_of(section: type, prefix: str) -> Iterator[Key]:
    hints = get_type_hints(section)
    comments = _comments(section)
    for field in fields(section):
        if field.metadata.get(NO_KEY):
            continue
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from _keys_of(hint, f"{prefix}{field.name}.")
            continue
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        comment = comments.get(field.name, "")
        is_free = getattr(hint, "__origin__", hint) is dict
        yield Key(prefix + field.name, _type_name(hint, str(field.type)), as_yaml(default), comment, is_free)


def _type_name(hint: Any, annotation: str) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(member.name for member in hint)
    return annotation


def as_yaml(value: Any) -> str:
    """Return a default as written in YAML. Example: None -> "null", [1, 2] -> "[1, 2]"."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list):
        return f"[{', '.join(as_yaml(item) for item in value)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "{}" if value == {} else str(value)


@cache
def _comments(section: type) -> dict[str, str]:
    """Return field -> the comment after it in the source of its class or a base class."""
    found: dict[str, str] = {}
    for one in reversed(section.__mro__):
        if is_dataclass(one):
            found |= _comments_in(one)
    return found


def _comments_in(one: type) -> dict[str, str]:
    """Return the comments of one class; {} for one without source, such as a schema made during composition."""
    try:
        source = inspect.getsource(one)
    except (OSError, TypeError):
        return {}
    found: dict[str, str] = {}
    name = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.start[1] == 4 and token.line[token.end[1] : token.end[1] + 1] == ":":
            name = token.string
        elif token.type == tokenize.COMMENT and name and token.start[1] > 4:
            found[name] = token.string.lstrip("# ")
    return found
