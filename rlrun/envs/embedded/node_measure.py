"""Renders an image of the embedded world on this node, in a process that is killed if it hangs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.doctor.assignment import SimulatorRequest
from rlrun.doctor.simulator_inspection import LIMIT_S

_PACKAGE = Path(__file__).resolve().parents[2]
# The interpreter may lack rlrun; it imports the package as env workers under another interpreter do.
_TRIAL = """
import importlib.util, sys
bootstrap, package = sys.argv[1:3]
spec = importlib.util.spec_from_file_location("bootstrap", bootstrap)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.add_package("rlrun", package)
from rlrun.envs.embedded.drawing_trial import main
main(sys.argv[3])
"""
_TRAINER_ONLY = ("PYTHONPATH", "PYTHONHOME")  # variables that would break another interpreter
_NO_IMAGE: dict[str, Any] = {"kind": "", "device": "", "milliseconds": 0.0}


@dataclass(frozen=True)
class RendererFacts:
    """The renderer of cameras. Example: RendererFacts("egl", "llvmpipe (LLVM 15.0.6, 256 bits)", 2.9, "", "")."""

    kind: str  # "egl", "osmesa", "raycast"; "" if no image was rendered
    device: str  # name of the GPU or software renderer, as OpenGL reports it
    milliseconds: float  # per image of env.image_size
    warning: str  # a faster renderer, and why it does not work; "" if there is none
    error: str  # why no image was rendered; "" if one was


def measure_renderer(request: SimulatorRequest, limit_s: float = LIMIT_S) -> RendererFacts:
    """Return which renderer env workers will use, and its time per image."""
    question = json.dumps({"renderer": request.env.renderer.value, "image_size": request.env.image_size})
    command = [request.python, "-c", _TRIAL, str(_PACKAGE / "pipe" / "bootstrap.py"), str(_PACKAGE), question]
    hidden = () if request.python == sys.executable else _TRAINER_ONLY
    own = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        return _answer(command, own | dict(request.environment), limit_s)
    except OSError as error:
        return RendererFacts(**_NO_IMAGE, warning="", error=f"{request.python} does not start: {error.strerror}")


def _answer(command: list[str], environment: dict[str, str], limit_s: float) -> RendererFacts:
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        output, errors = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()  # no wait: a process that hangs in a driver does not end
        warning = f"no image within {limit_s:.0f} s: the graphics driver hangs, or the node is very busy"
        return RendererFacts(**_NO_IMAGE, warning=warning, error="")
    if child.returncode < 0:
        return RendererFacts(
            **_NO_IMAGE, warning="", error=f"the renderer was killed by {signal.Signals(-child.returncode).name}"
        )
    with contextlib.suppress(ValueError, IndexError, TypeError):
        return RendererFacts(**json.loads(output.splitlines()[-1]))
    last = errors.strip().splitlines()
    return RendererFacts(
        **_NO_IMAGE, warning="", error=last[-1] if last else f"the renderer ended with status {child.returncode}"
    )
