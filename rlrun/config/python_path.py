"""Finds and imports the modules that a configuration names as `module:ATTRIBUTE`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def load_object(location: str) -> Any:
    """Return the attribute of "module:ATTRIBUTE". Raises ImportError, AttributeError, or an exception of the module."""
    module, _, attribute = location.partition(":")
    found = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def put_on_path(folders: list[str]) -> None:
    """Let this process import modules from these folders."""
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


def folder_of(location: str, folders: list[Path]) -> Path | None:
    """Return the first of `folders` with the module of "module:ATTRIBUTE"; None: it is installed, or missing."""
    top = location.partition(":")[0].partition(".")[0]
    for folder in folders:
        if (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file():
            return folder.resolve()
    return None


def file_of(location: str) -> str:
    """Return the file of the top module or package of an imported "module:ATTRIBUTE"."""
    top = import_module(location.partition(":")[0].partition(".")[0])
    return str(getattr(top, "__file__", None) or "")


def import_from(name: str, file: str) -> None:
    """Import a top module from its file, without its neighbours. Does nothing if it is imported already.

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
