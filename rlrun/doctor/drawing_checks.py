"""Judgements about who draws the cameras of the embedded world."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.doctor.facts import DrawingFacts, NodeFacts
from rlrun.doctor.finding import Finding, Status
from rlrun.doctor.situation import Situation

PACKAGES = "apt-get install libegl1 libgl1-mesa-dri libopengl0 libgl1"
_SOFTWARE = ("llvmpipe", "softpipe", "swrast")  # names of Mesa's renderers on the CPU


def renderer(situation: Situation) -> Iterator[Finding]:
    """Cameras are drawn where they should be: by a GPU where there is one, by OpenGL everywhere."""
    for node, drawing in _drawings(situation):
        if drawing.error:
            fix = f"{PACKAGES}; env.renderer=raycast needs no graphics driver"
            yield Finding("renderer", Status.failed, node.node, drawing.error, fix)
        elif drawing.warning:
            fix = PACKAGES if drawing.drawn_by else "nvidia-smi; dmesg | tail; env.renderer=raycast needs no driver"
            yield Finding("renderer", Status.warning, node.node, drawing.warning, fix, _told(drawing))
        elif node.gpus and drawing.drawn_by.startswith(_SOFTWARE):
            cause = f"OpenGL draws on the CPU ({drawing.drawn_by}), though there is {node.gpus[0].model}"
            fix = "the driver's graphics half is missing: libnvidia-gl-<version of the driver>; in containers "
            fix += "NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility"
            yield Finding("renderer", Status.warning, node.node, cause, fix, _told(drawing))


def measured(situation: Situation) -> str:
    """Example: "sim-0: NVIDIA GeForce RTX 4090, 1.2 ms a picture"."""
    told = [f"{node.node}: {_told(drawing)}" for node, drawing in _drawings(situation)]
    return "; ".join(told[:8]) or "not looked at"


def _drawings(situation: Situation) -> Iterator[tuple[NodeFacts, DrawingFacts]]:
    for node in situation.facts.nodes:
        if node.drawing is not None:
            yield node, node.drawing


def _told(drawing: DrawingFacts) -> str:
    return f"{drawing.drawn_by or 'nothing'}, {drawing.milliseconds:.1f} ms a picture"
