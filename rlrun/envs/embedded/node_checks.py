"""Check of the renderer of the embedded world's cameras."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.doctor.check import Check, Finding, Situation, Status
from rlrun.doctor.facts import NodeFacts
from rlrun.doctor.measure import SimulatorInspection
from rlrun.envs.embedded.node_measure import RendererFacts, measure_renderer

PACKAGES = "apt-get install libegl1 libgl1-mesa-dri libopengl0 libgl1"
_SOFTWARE = ("llvmpipe", "softpipe", "swrast")  # names of Mesa's renderers on the CPU


def renderer(situation: Situation) -> Iterator[Finding]:
    """Check that OpenGL renders the cameras, on a GPU if the node has one."""
    for node, facts in _facts(situation):
        if facts.error:
            fix = f"{PACKAGES}; env.renderer=raycast needs no graphics driver"
            yield Finding("renderer", Status.failed, node.node, facts.error, fix)
        elif facts.warning:
            fix = PACKAGES if facts.device else "nvidia-smi; dmesg | tail; env.renderer=raycast needs no driver"
            yield Finding("renderer", Status.warning, node.node, facts.warning, fix, _summary(facts))
        elif node.gpus and facts.device.startswith(_SOFTWARE):
            cause = f"OpenGL renders on the CPU ({facts.device}) although the node has {node.gpus[0].model}"
            fix = "install the graphics part of the driver: libnvidia-gl-<version of the driver>; in containers "
            fix += "NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility"
            yield Finding("renderer", Status.warning, node.node, cause, fix, _summary(facts))


def measured(situation: Situation) -> str:
    """Example: "sim-0: NVIDIA GeForce RTX 4090, 833 images/s"."""
    summaries = [f"{node.node}: {_summary(facts)}" for node, facts in _facts(situation)]
    return "; ".join(summaries[:8]) or "not looked at"


def _facts(situation: Situation) -> Iterator[tuple[NodeFacts, RendererFacts]]:
    for node in situation.facts.nodes:
        if isinstance(node.simulator, RendererFacts):
            yield node, node.simulator


def _summary(facts: RendererFacts) -> str:
    per_second = 1000 / facts.milliseconds if facts.milliseconds else 0.0
    return f"{facts.device or 'nothing'}, {per_second:.0f} images/s"


INSPECTION = SimulatorInspection(
    measure_renderer,
    (
        Check(
            "renderer",
            "the renderer of the embedded world's cameras, and its images per second",
            "nodes with env workers under env.simulator=embedded",
            "no renderer works; warns about a hanging driver, ray casting, and OpenGL on the CPU of a node with GPUs",
            renderer,
            measured,
        ),
    ),
)
