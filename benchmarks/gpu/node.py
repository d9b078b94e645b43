"""Rows of the node: versions, who draws, what the doctor finds."""

from __future__ import annotations

import json
import sys
import tempfile

from benchmarks.gpu.commands import CommandFailed, output
from benchmarks.gpu.machine import Machine, is_installed
from benchmarks.gpu.row import Seen, row

_PACKAGES = ("torch", "transformers", "ray", "triton", "flash_attn", "bitsandbytes", "mujoco")
_DRAW = """
import mujoco
from rlrun.config.schema import Renderer
from rlrun.envs.embedded.renderer import OpenGLRenderer
print(OpenGLRenderer(mujoco.MjModel.from_xml_string("<mujoco/>"), Renderer.egl).drawn_by)
"""


@row("versions", "torch sees the card")
def versions(machine: Machine) -> Seen:
    """torch with its CUDA, the driver, and which optional packages are there."""
    import torch

    from rlrun.system import nvidia_smi

    drivers = [", ".join(cells) for cells in nvidia_smi.query(["name", "driver_version"])]
    there = [name for name in _PACKAGES[1:] if is_installed(name)]
    text = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {'; '.join(drivers) or 'no nvidia-smi'}"
    return Seen(f"{text}, with {', '.join(there)}", torch.cuda.is_available())


@row("EGL", "draws by NVIDIA", needs=("mujoco", "OpenGL"))
def egl(machine: Machine) -> Seen:
    """In a container without the graphics part of the driver, Mesa's software renderer draws, or nothing does."""
    drawn_by = output([sys.executable, "-c", _DRAW], 60, {"MUJOCO_GL": "egl"}).strip()
    return Seen(drawn_by, "nvidia" in drawn_by.lower())


@row("doctor", "no failure", needs=("ray", "hydra"))
def doctor(machine: Machine) -> Seen:
    """All checks of this machine for the default run."""
    with tempfile.TemporaryDirectory(prefix="rlrun-gpu-") as folder:
        words = ["format=json", f"output_dir={folder}/run"]
        try:
            found = json.loads(output([sys.executable, "-m", "rlrun.doctor", *words], 120))["findings"]
        except CommandFailed as error:
            return Seen(str(error), is_right=False)
    warned = [finding["check"] for finding in found if finding["status"] == "warning"]
    return Seen(f"{len(found)} findings, warnings: {', '.join(warned) or 'none'}", is_right=True)


ROWS = [versions, egl, doctor]
