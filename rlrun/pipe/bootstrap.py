"""Entry point of a child process: makes `rlrun` importable there, but no other package of the trainer.

It runs by path under the child's interpreter, with the file descriptors of socket, shared memory and lifeline and the
name of the serving module as arguments. The folder of rlrun may be a site-packages with libraries for another Python,
so it must not be put on the path.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys


def add_package(name: str, folder: str) -> None:
    """Import package `name` from `folder`, without its siblings."""
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def main() -> None:
    """Serve calls until the worker closes the channel or exits."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # python puts it first
    add_package("rlrun", os.path.dirname(here))
    *descriptors, module = sys.argv[1:5]
    importlib.import_module(module).serve(*map(int, descriptors))


if __name__ == "__main__":
    main()
