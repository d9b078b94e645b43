"""Modules that a configuration names as `module:ATTRIBUTE`: where their files lie, and how they are imported."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def load_object(location: str) -> Any:
    """The attribute that "module:ATTRIBUTE" names. Raises ImportError, AttributeError, or what the module raises."""
    module, _, attribute = location.partition(":")
    found = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def put_on_path(folders: list[str]) -> None:
    """Let modules in these folders be imported by this process."""
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


def folder_of(location: str, folders: list[Path]) -> Path | None:
    """The first of `folders` that holds the module of "module:ATTRIBUTE"; None: an installed one, or none at all."""
    top = location.partition(":")[0].partition(".")[0]
    for folder in folders:
        if (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file():
            return folder.resolve()
    return None
