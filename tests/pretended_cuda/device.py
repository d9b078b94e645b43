"""Compiles C++ for the torch that is installed, once, and loads `device.cpp`; torch must not be imported before."""

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
    return _compiled(SOURCE, ".so", ("-shared", "-fPIC", "-O0"))


def program(source: Path) -> Path:
    """Return a program of one source that uses torch's headers, compiled and kept as `library` is."""
    return _compiled(source, "", ("-O1", "-DNDEBUG", "-w"))


def _compiled(source: Path, suffix: str, options: tuple[str, ...]) -> Path:
    version = importlib.metadata.version("torch")
    digest = hashlib.sha256(source.read_bytes() + version.encode()).hexdigest()[:16]
    made = CACHE / f"{digest}{suffix}"
    if made.exists():
        return made
    found = compiler()
    if found is None:
        raise FileNotFoundError("a C++ compiler is needed to pretend CUDA: apt-get install g++")
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    torch = Path(spec.origin).parent
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = CACHE / f"{digest}.{os.getpid()}"  # of several processes that compile, the last one wins
    include = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    command = [found, *options, "-std=c++20", *include, str(source), *libraries, "-o", str(unfinished)]
    subprocess.run(command, check=True, timeout=300)
    unfinished.replace(made)
    return made


def load() -> None:
    """Give this process's torch a CUDA device. Raises RuntimeError if torch has been imported."""
    if "torch" in sys.modules:
        raise RuntimeError("torch looks for its devices once, when it is imported; load() must come first")
    ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)
