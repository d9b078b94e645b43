"""docs/reference/configuration.md: every key of a run, from the schema, its comments and its ranges."""

from __future__ import annotations

import inspect
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args, get_type_hints

from rlrun.config.reference import Key, all_keys
from rlrun.config.registry import REGISTRIES, schema_with
from rlrun.config.sections import Range, Section, bounds_of


@dataclass(frozen=True)
class Details:
    """What the schema says of a key beyond its type and default."""

    allowed: Range | None
    choices: dict[str, str]  # of an enumeration: value -> comment


def key_tables() -> str:
    """One table a section, in the order of the schema."""
    details = dict(_details_of(schema_with(), ""))
    in_section: dict[str, list[Key]] = {}
    for key in all_keys():
        section = key.path.rpartition(".")[0]
        if section not in foreign_sections():
            in_section.setdefault(section, []).append(key)
    parts = []
    for section, keys in in_section.items():
        rows = [_row(key, details[key.path]) for key in keys]
        parts += [
            f"## `{section}`" if section else "## The run",
            "",
            "| key | type | default | meaning |",
            "|---|---|---|---|",
        ]
        parts += [*rows, ""]
    return "\n".join(parts).rstrip()


@cache
def foreign_sections() -> set[str]:
    """Sections of kinds that other installed packages bring; their documents are their own."""
    kinds = [(registry, name) for registry in REGISTRIES for name in registry.names()]
    return {f"{registry.parent}.{name}" for registry, name in kinds if not registry.location(name).startswith("rlrun.")}


def _details_of(section: type, prefix: str) -> Iterator[tuple[str, Details]]:
    bounds = dict(bounds_of(section))
    for name, hint in get_type_hints(section).items():
        path = prefix + name
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from _details_of(hint, f"{path}.")
        else:
            yield path, Details(bounds.get(name), _choices(hint))


def _choices(hint: Any) -> dict[str, str]:
    for one in (hint, *get_args(hint)):
        if isinstance(one, type) and issubclass(one, Enum):
            return {member.name: _comments(one).get(member.name, "") for member in one}
    return {}


@cache
def _comments(enumeration: type[Enum]) -> dict[str, str]:
    """Member -> the comment behind it."""
    found, name = {}, ""
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(enumeration)).readline):
        if token.type == tokenize.NAME and token.start[1] == 4:
            name = token.string
        elif token.type == tokenize.COMMENT and token.start[1] > 4:
            found[name] = token.string.lstrip("# ")
    return found


def _row(key: Key, details: Details) -> str:
    sentences = [key.comment[:1].upper() + key.comment[1:]]
    sentences += [f"`{name}`: {comment}" for name, comment in details.choices.items() if comment]
    if details.allowed and str(details.allowed):
        sentences.append(f"Must be {details.allowed}")
    meaning = " ".join(sentence.rstrip(".") + "." for sentence in sentences if sentence).replace("None:", "null:")
    kind = " | ".join(details.choices) + (" | None" if "None" in key.type else "") if details.choices else key.type
    shown = cell(kind.replace(" | None", " or null"))
    return f"| `{key.path.rpartition('.')[2]}` | {shown} | `{key.default}` | {cell(meaning)} |"


def cell(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    parts = text.replace("|", "\\|").replace("\n", " ").split("`")
    return "`".join(part.replace("<", "&lt;") if i % 2 == 0 else part for i, part in enumerate(parts)).strip()
