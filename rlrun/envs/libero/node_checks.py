"""Check of the renderer of LIBERO's cameras, in LIBERO's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.doctor.assignment import SimulatorRequest
from rlrun.doctor.check import Check, Finding, Situation, Status
from rlrun.doctor.facts import NodeFacts
from rlrun.doctor.measure import LONGEST_S, SimulatorInspection
from rlrun.envs.node_trial import run_trial

_FIX = "apt-get install libegl1 libgl1-mesa-dri libopengl0 libgl1; on a node with GPUs, the driver's graphics part"
_SOFTWARE = ("llvmpipe", "softpipe", "swrast")  # names of Mesa's renderers on the CPU


@dataclass(frozen=True)
class DrawingFacts:
    """A trial of MuJoCo's renderer. Example: DrawingFacts("llvmpipe (LLVM 15.0.6, 256 bits)", 1.9, "")."""

    device: str  # name of the GPU or software renderer, as OpenGL reports it; "" if no image was drawn
    milliseconds: float  # per image of env.image_size
    error: str  # why no image was drawn; "" if one was
    is_late: bool = False  # it was not drawn in time


def measure_drawing(request: SimulatorRequest, limit_s: float = LONGEST_S) -> DrawingFacts:
    """Draw in the interpreter of the env workers."""
    question = {"renderer": request.env.renderer.value, "image_size": request.env.image_size}
    trial = run_trial(request, "rlrun.envs.libero.drawing_trial", question, limit_s)
    return DrawingFacts(**trial.answer) if trial.answer else DrawingFacts("", 0.0, trial.error, trial.is_late)


def drawing(situation: Situation) -> Iterator[Finding]:
    """Check that MuJoCo draws, on a GPU if the node has one."""
    name = "libero renderer"
    for node, facts in _facts(situation):
        if facts.is_late:
            cause = f"no image within {LONGEST_S:.0f} s: the graphics driver hangs, or the node is very busy"
            yield Finding(name, Status.warning, node.node, cause, "nvidia-smi; dmesg | tail")
        elif facts.error:
            yield Finding(name, Status.failed, node.node, f"MuJoCo draws no image: {facts.error}", _FIX)
        elif node.gpus and facts.device.startswith(_SOFTWARE):
            cause = f"OpenGL renders on the CPU ({facts.device}) although the node has {node.gpus[0].model}"
            yield Finding(name, Status.warning, node.node, cause, _FIX)


def measured(situation: Situation) -> str:
    """Example: "sim-0: NVIDIA GeForce RTX 4090, 833 images/s"."""
    drawn = [(node.node, facts) for node, facts in _facts(situation) if facts.milliseconds]
    told = [f"{name}: {facts.device}, {1000 / facts.milliseconds:.0f} images/s" for name, facts in drawn[:8]]
    return "; ".join(told) or "not looked at"


def _facts(situation: Situation) -> Iterator[tuple[NodeFacts, DrawingFacts]]:
    for node in situation.facts.nodes:
        if isinstance(node.simulator, DrawingFacts):
            yield node, node.simulator


INSPECTION = SimulatorInspection(
    measure_drawing,
    (
        Check(
            "libero renderer",
            "MuJoCo's renderer in LIBERO's interpreter, and its images per second of a simple scene",
            "nodes with env workers under env.simulator=libero",
            "no image is drawn; warns about a hanging driver, and OpenGL on the CPU of a node with GPUs",
            drawing,
            measured,
        ),
    ),
)
