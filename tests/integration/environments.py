"""Virtual environments of packages that cannot be installed beside rlrun, each made once under .cache/."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".cache"


@cache
def environment_python(name: str, packages: tuple[str, ...], num_bytes: float) -> str:
    """Return the interpreter of .cache/NAME with these packages; skips the test where it cannot be made.

    num_bytes: that the environment takes; three times as much must be free.
    """
    folder = CACHE / name
    is_done = folder / "installed"
    wanted = "\n".join(packages)
    if not is_done.exists() or is_done.read_text() != wanted:
        _install(folder, packages, num_bytes)
        is_done.write_text(wanted)
    return str(folder / "bin" / "python")


def _install(folder: Path, packages: tuple[str, ...], num_bytes: float) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    size = f"the packages of {folder.name} ({num_bytes / 1e9:.1f} GB)"
    if free < 3 * num_bytes:
        pytest.skip(f"{size}: {free / 1e9:.1f} GB are free")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    command = [folder / "bin" / "pip", "install", "-qq", "--no-compile", "--retries", "1", *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{size} did not arrive within a quarter of an hour")
    if done.returncode:
        pytest.skip(f"{size} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
