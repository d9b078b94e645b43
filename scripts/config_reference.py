"""docs/reference/configuration.md: every key of a run, from the schema, its comments and its ranges."""

from __future__ import annotations

from functools import cache

from refusals import cell

from rlrun.config.ranges import RANGES
from rlrun.config.reference import Key, all_keys
from rlrun.config.registry import REGISTRIES


def key_tables() -> str:
    """One table a section, in the order of the schema."""
    in_section: dict[str, list[Key]] = {}
    for key in all_keys():
        section = key.path.rpartition(".")[0]
        if section not in foreign_sections():
            in_section.setdefault(section, []).append(key)
    parts = []
    for section, keys in in_section.items():
        parts += [f"## `{section}`" if section else "## The run", "", *_table(keys), ""]
    return "\n".join(parts).rstrip()


@cache
def foreign_sections() -> set[str]:
    """Sections of kinds that other installed packages bring; their documents are their own."""
    kinds = [(registry, name) for registry in REGISTRIES for name in registry.names()]
    return {f"{registry.parent}.{name}" for registry, name in kinds if not registry.location(name).startswith("rlrun.")}


def _table(keys: list[Key]) -> list[str]:
    return ["| key | type | default | meaning |", "|---|---|---|---|", *(_row(key) for key in keys)]


def _row(key: Key) -> str:
    allowed = RANGES.get(key.path)
    bounds = f"Must be {allowed}." if allowed and str(allowed) else ""
    comment = (key.comment[:1].upper() + key.comment[1:]).replace("None:", "null:")
    meaning = " ".join(sentence for sentence in (comment.rstrip(".") + "." if comment else "", bounds) if sentence)
    name = key.path.rpartition(".")[2]
    kind = cell(key.type.replace(" | None", " or null"))
    return f"| `{name}` | {kind} | `{key.default}` | {cell(meaning)} |"
