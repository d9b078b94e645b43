"""Renders an image of the embedded world on this node, in a process that is killed if it hangs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlrun.doctor.assignment import SimulatorRequest
from rlrun.doctor.measure import LIMIT_S
from rlrun.envs.node_trial import run_trial

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
    question = {"renderer": request.env.renderer.value, "image_size": request.env.image_size}
    trial = run_trial(request, "rlrun.envs.embedded.drawing_trial", question, limit_s)
    if trial.is_late:
        warning = f"no image within {limit_s:.0f} s: the graphics driver hangs, or the node is very busy"
        return RendererFacts(**_NO_IMAGE, warning=warning, error="")
    if trial.error:
        return RendererFacts(**_NO_IMAGE, warning="", error=f"the renderer gave no image: {trial.error}")
    return RendererFacts(**trial.answer)
