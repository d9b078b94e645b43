"""Modules that a configuration names as `module:ATTRIBUTE`: where their files lie, and how they are imported."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
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


def file_of(location: str) -> str:
    """The file of the top module or package of "module:ATTRIBUTE", which has been imported."""
    top = import_module(location.partition(":")[0].partition(".")[0])
    return str(getattr(top, "__file__", None) or "")


def import_from(name: str, file: str) -> None:
    """Import a top module from its file, and nothing that lies beside it; one that is there already stays.

    For a simulator's own interpreter, which must not get the libraries of the trainer's Python.
    """
    if find_spec(name) is not None:
        return
    path = Path(file)
    inside = [str(path.parent)] if path.name == "__init__.py" else None
    spec = spec_from_file_location(name, file, submodule_search_locations=inside)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} cannot be imported from {file}")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
