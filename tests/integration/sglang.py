"""An interpreter that has SGLang: the one that RLRUN_SGLANG_PYTHON names, or a virtual environment made once."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "sglang"
NEEDED_BYTES = 5_000_000_000
INSTALL_S = 900


@cache
def sglang_python() -> str:
    """Its path; skips the test where it cannot be made. Test processes take turns: one makes it."""
    given = os.environ.get("RLRUN_SGLANG_PYTHON")
    if given:
        return given
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with (FOLDER.parent / "sglang.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (FOLDER / "installed").exists():
            _install()
    return str(FOLDER / "bin" / "python")


def _install() -> None:
    free = shutil.disk_usage(FOLDER.parent).free
    if free < NEEDED_BYTES:
        pytest.skip(f"SGLang takes 3 GB, and {free / 1e9:.1f} GB are free")
    command = [sys.executable, str(ROOT / "scripts" / "sglang_environment.py"), str(FOLDER)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the packages of SGLang (3 GB) did not arrive within a quarter of an hour")
    if done.returncode:
        pytest.skip(f"SGLang cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
