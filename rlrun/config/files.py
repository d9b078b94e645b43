"""The folder of the shipped YAML files, and the groups of YAML files."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).parent / "shipped"  # a link to configs/ in the repository, a copy in a wheel


def groups(folders: list[Path]) -> dict[str, list[str]]:
    """Return the config groups with the names of their files. Example: {"run": ["debug", "single_process", …]}.

    A file whose name begins with "_" is a part of others, and is not chosen by itself.
    """
    found: dict[str, list[str]] = {}
    for folder in folders:
        for file in sorted(folder.glob("*/[!_]*.yaml")):
            found.setdefault(file.parent.name, []).append(file.stem)
    return found
