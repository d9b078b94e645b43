"""Compiles `device.cpp` for the torch that is installed, once, and loads it; torch must not be imported before."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "pretended_cuda"


def compiler() -> str | None:
    """Return the C++ compiler, or None where there is none."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)


def library() -> Path:
    """Return the compiled library, and compile it if it is older than torch or its source. Takes ten seconds.

    Raises FileNotFoundError without a compiler, and CalledProcessError if the source does not compile.
    """
    version = importlib.metadata.version("torch")
    made = CACHE / f"{hashlib.sha256(SOURCE.read_bytes() + version.encode()).hexdigest()[:16]}.so"
    if made.exists():
        return made
    found = compiler()
    if found is None:
        raise FileNotFoundError("a C++ compiler is needed to pretend CUDA: apt-get install g++")
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    torch = Path(spec.origin).parent
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = made.with_suffix(f".{os.getpid()}")  # of several processes that compile, the last one wins
    include = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    options = ["-shared", "-fPIC", "-std=c++20", "-O0"]
    subprocess.run([found, *options, *include, str(SOURCE), *libraries, "-o", str(unfinished)], check=True, timeout=300)
    unfinished.replace(made)
    return made


def load() -> None:
    """Give this process's torch a CUDA device. Raises RuntimeError if torch has been imported."""
    if "torch" in sys.modules:
        raise RuntimeError("torch looks for its devices once, when it is imported; load() must come first")
    ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)
