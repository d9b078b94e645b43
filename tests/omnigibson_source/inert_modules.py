"""Imports a checkout of OmniGibson on a machine without Isaac Sim: absent third-party modules do nothing.

Every access of OmniGibson to Isaac and USD is lazy, so its Python imports; what its import needs beside torch,
gymnasium, networkx and addict is never called by the adapter.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import types
from pathlib import Path

DECORATORS = ("jit", "njit", "vectorize", "kernel", "func", "overload", "guvectorize")
MODULES = (
    *("IPython", "aenum", "av", "carb", "cffi", "cryptography", "curobo", "cv2", "git", "graphviz", "gspread", "h5py"),
    *(
        "imageio_ffmpeg",
        "isaacsim",
        "llvmlite",
        "lxml",
        "matplotlib",
        "nest_asyncio",
        "numba",
        "omni",
        "ompl",
        "open3d",
    ),
    *("pandas", "progressbar", "pxr", "pybullet", "pymeshlab", "rtree", "scipy", "shapely", "sklearn", "telemoma"),
    *("termcolor", "transforms3d", "trimesh", "usdrt", "warp"),
)


class Inert(types.ModuleType):
    """A module whose names are classes that do nothing."""

    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in DECORATORS:
            return lambda *args, **_: args[0] if args and callable(args[0]) else (lambda function: function)
        members = {
            "__init__": lambda self, *_, **__: None,
            "__call__": lambda self, *args, **_: args[0] if args and callable(args[0]) else self,
            "__getattr__": lambda self, _: None,
        }
        return type(name, (), members)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds inert modules for names that Python cannot find; it is asked last."""

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in MODULES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Inert(spec.name)

    def exec_module(self, module) -> None:
        return


def add_source(checkout: Path) -> None:
    """Put a checkout of BEHAVIOR-1K on the path, and inert modules behind everything."""
    os.environ["OMNIGIBSON_DATA_PATH"] = tempfile.mkdtemp(prefix="omnigibson-data-")
    sys.path[:0] = [str(checkout / "OmniGibson"), str(checkout / "bddl3")]
    sys.meta_path.append(Finder())
