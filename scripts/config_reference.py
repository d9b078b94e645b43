"""docs/reference/configuration.md: every key of a run, from the schema, its comments and its ranges."""

from __future__ import annotations

from refusals import cell

from rlrun.config.ranges import RANGES
from rlrun.config.reference import Key, all_keys


def key_tables() -> str:
    """One table a section, in the order of the schema."""
    in_section: dict[str, list[Key]] = {}
    for key in all_keys():
        in_section.setdefault(key.path.rpartition(".")[0], []).append(key)
    parts = []
    for section, keys in in_section.items():
        parts += [f"## `{section}`" if section else "## The run", "", *_table(keys), ""]
    return "\n".join(parts).rstrip()


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
