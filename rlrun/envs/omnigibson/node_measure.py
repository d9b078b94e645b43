"""Measures what OmniGibson needs on this node: interpreter, packages, graphics driver, dataset, licence."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlrun.doctor.assignment import SimulatorRequest
from rlrun.envs.omnigibson.settings import OmniGibsonConfig

ICD_FOLDERS = ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
ICD_VARIABLES = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")
LIBRARIES = ("vulkan", "X11", "Xext", "Xt", "SM", "ICE", "GLU")  # libraries that Kit loads
KEY = "omnigibson.key"
_QUESTION_S = 60.0
_QUESTION = """
import importlib.metadata as m, importlib.util as u, json, sys
names = ("omnigibson", "isaacsim", "isaacsim-core", "bddl", "torch", "numpy", "msgpack")
found = {}
for name in names:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
spec = u.find_spec("omnigibson")
folder = list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else ""
print(json.dumps({"python": sys.version.split()[0], "packages": found, "folder": folder}))
"""


@dataclass(frozen=True)
class SimulatorFacts:
    """The OmniGibson installation of a node.

    Example: SimulatorFacts("/opt/omnigibson/bin/python", None, "3.10.14", {"omnigibson": "3.7.2", …}, "", …)
    """

    python: str
    error: str | None  # why the interpreter did not answer; None: it answered
    python_version: str
    packages: Mapping[str, str]  # of that interpreter
    isaac_path: str  # ISAAC_PATH; "" if it is not set
    vulkan_icds: tuple[str, ...]  # NVIDIA's Vulkan driver files
    missing_libraries: tuple[str, ...]  # shared libraries, without "lib"
    data_path: str  # "" if unknown
    has_scene: bool
    has_key: bool
    eula: str  # OMNI_KIT_ACCEPT_EULA


def measure_simulator(request: SimulatorRequest) -> SimulatorFacts:
    """Return the facts for `request`; takes as long as its interpreter takes to start."""
    environment = {**os.environ, **request.environment}
    answer, error = _ask(request.python, environment)
    data = environment.get("OMNIGIBSON_DATA_PATH", "")
    if not data and answer.get("folder"):
        data = str(Path(answer["folder"]) / "data")  # OmniGibson's own default
    places = [Path(data)] if data else []
    scene = request.env.section(OmniGibsonConfig).scene
    return SimulatorFacts(
        python=request.python,
        error=error,
        python_version=str(answer.get("python", "")),
        packages=dict(answer.get("packages", {})),
        isaac_path=environment.get("ISAAC_PATH", ""),
        vulkan_icds=_icds(environment),
        missing_libraries=tuple(name for name in LIBRARIES if ctypes.util.find_library(name) is None),
        data_path=data,
        has_scene=any(found for place in places for found in place.glob(f"**/scenes/{scene}")),
        has_key=any(found for place in places for found in place.glob(f"**/{KEY}")),
        eula=environment.get("OMNI_KIT_ACCEPT_EULA", ""),
    )


def _ask(python: str, environment: Mapping[str, str]) -> tuple[dict, str | None]:
    """Return the interpreter's versions and packages, and an error message or None."""
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_QUESTION_S,
            check=False,
        )
        return json.loads(done.stdout.splitlines()[-1]), None
    except (OSError, subprocess.TimeoutExpired) as failure:
        return {}, str(failure)
    except (IndexError, json.JSONDecodeError):
        return {}, (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]


def _icds(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return NVIDIA's Vulkan driver files (ICDs)."""
    named = [Path(path) for name in ICD_VARIABLES for path in environment.get(name, "").split(":") if path]
    usual = [path for folder in ICD_FOLDERS for path in sorted(Path(folder).glob("*nvidia*.json"))]
    return tuple(str(path) for path in (named or usual) if path.is_file())
