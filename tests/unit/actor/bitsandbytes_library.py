"""bitsandbytes, which rlrun does not require: the one of this interpreter, or one in a folder made once."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "bitsandbytes==0.50.2"
FOLDER = Path(__file__).resolve().parents[3] / ".cache" / PACKAGE.replace("==", "-")


@cache
def folder_of_library() -> Path | None:
    """None where it can be imported already; skips the test where it cannot be had (43 MB, without dependencies)."""
    if importlib.util.find_spec("bitsandbytes") is not None:
        return None
    if not (FOLDER / "installed").exists():
        command = [sys.executable, "-m", "pip", "install", "-qq", "--retries", "1", "--no-deps", "--upgrade"]
        try:
            command += ["--target", str(FOLDER), PACKAGE]
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{PACKAGE} did not arrive within four minutes")
        if done.returncode:
            pytest.skip(f"{PACKAGE} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
        (FOLDER / "installed").touch()
    return FOLDER


def make_importable(folder: Path | None) -> None:
    """In the process that calls."""
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))
