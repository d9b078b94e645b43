"""Checks of the simulators that rlrun ships: renderers of cameras, and the spaces of a Gymnasium environment.

OmniGibson has its own file. Specs name the inspections at the end of this one, so that nothing else imports them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.config.sections import file_of, to_dict
from rlrun.doctor.check import Check, ClusterState, Finding, Status
from rlrun.doctor.measure import LIMIT_S, LONGEST_S, SimulatorInspection
from rlrun.doctor.node_request import SimulatorRequest
from rlrun.doctor.optional_packages import Answer, ask

_PACKAGE = Path(__file__).resolve().parents[1]
# The interpreter may lack rlrun; it imports the package as env workers under another interpreter do.
_PROGRAM = """
import importlib, importlib.util, sys
bootstrap, package, question = sys.argv[1:4]
spec = importlib.util.spec_from_file_location("bootstrap", bootstrap)
found = importlib.util.module_from_spec(spec)
spec.loader.exec_module(found)
found.add_package("rlrun", package)
importlib.import_module("rlrun.doctor.simulator_trials").main(question)
"""
PACKAGES = "apt-get install libegl1 libgl1-mesa-dri libopengl0 libgl1"
_SOFTWARE = ("llvmpipe", "softpipe", "swrast")  # names of Mesa's renderers on the CPU


# --- trials in the simulator's interpreter -------------------------------------------------------


def run_trial(request: SimulatorRequest, trial: str, arguments: dict[str, Any], limit_s: float) -> Answer:
    """Run a function of `simulator_trials`, or module:FUNCTION, under the request's interpreter; see `ask`."""
    question = {"trial": trial, "package": file_of(trial) if ":" in trial else ""} | arguments
    words = [str(_PACKAGE / "pipe" / "bootstrap.py"), str(_PACKAGE), json.dumps(question)]
    return ask(request.python, _PROGRAM, words, limit_s, request.environment)


# --- renderers of cameras ------------------------------------------------------------------------


@dataclass(frozen=True)
class RendererFacts:
    """The renderer of cameras. Example: RendererFacts("egl", "llvmpipe (LLVM 15.0.6, 256 bits)", 2.9, "", "", "")."""

    kind: str  # "egl", "osmesa", "raycast"; "" if no image was rendered
    device: str  # name of the GPU or software renderer, as OpenGL reports it
    milliseconds: float  # per image of env.image_size
    warning: str  # a faster renderer, and why it does not work; "" if there is none
    error: str  # why no image was rendered; "" if one was
    remedy: str = ""  # this simulator's own, beside the packages of OpenGL
    is_started: bool = True  # False: the interpreter that should draw is missing


def measure_world_renderer(request: SimulatorRequest, limit_s: float = LIMIT_S) -> RendererFacts:
    """Return the renderer of env workers of the embedded world, and its time per image."""
    return _renderer(request, "render_world", "env.renderer=raycast needs no graphics driver", limit_s)


def measure_mujoco_renderer(request: SimulatorRequest, limit_s: float = LONGEST_S) -> RendererFacts:
    """Return the facts of MuJoCo's own renderer, which draws a simple scene in the simulator's interpreter."""
    return _renderer(request, "render_by_mujoco", "on a node with GPUs, the driver's graphics part", limit_s)


def _renderer(request: SimulatorRequest, trial: str, remedy: str, limit_s: float) -> RendererFacts:
    arguments = {"renderer": request.env.renderer.value, "image_size": request.env.image_size}
    outcome = run_trial(request, trial, arguments, limit_s)
    if outcome.value:
        return RendererFacts(**outcome.value, remedy=remedy)
    warning = f"no image within {limit_s:.0f} s: the graphics driver hangs, or the node is very busy"
    error = f"the renderer gave no image: {outcome.error}"
    late = outcome.is_late
    return RendererFacts("", "", 0.0, warning if late else "", "" if late else error, remedy, outcome.is_started)


def renderer(cluster: ClusterState) -> Iterator[Finding]:
    """Check that OpenGL renders the cameras, on a GPU if the node has one."""
    for node, facts in cluster.simulators(RendererFacts):
        if facts.error:
            yield Finding("renderer", Status.failed, node.node, facts.error, f"{PACKAGES}; {facts.remedy}")
        elif facts.warning:
            fix = PACKAGES if facts.device else f"nvidia-smi; dmesg | tail; {facts.remedy}"
            yield Finding("renderer", Status.warning, node.node, facts.warning, fix, _speed(facts))
        elif node.gpus and facts.device.startswith(_SOFTWARE):
            cause = f"OpenGL renders on the CPU ({facts.device}) although the node has {node.gpus[0].model}"
            fix = "install the graphics part of the driver: libnvidia-gl-<version of the driver>; in containers "
            fix += "NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility"
            yield Finding("renderer", Status.warning, node.node, cause, fix, _speed(facts))


def rendered(cluster: ClusterState) -> str:
    """Example: "sim-0: NVIDIA GeForce RTX 4090, 833 images/s"."""
    speeds = [f"{node.node}: {_speed(facts)}" for node, facts in cluster.simulators(RendererFacts)]
    return "; ".join(speeds[:8]) or "not looked at"


def _speed(facts: RendererFacts) -> str:
    per_second = 1000 / facts.milliseconds if facts.milliseconds else 0.0
    return f"{facts.device or 'nothing'}, {per_second:.0f} images/s"


# --- spaces of a Gymnasium environment -----------------------------------------------------------


@dataclass(frozen=True)
class SpacesFacts:
    """Observation of an environment. Example: SpacesFacts(1, 8, "image -> camera, state -> proprioception", "")."""

    num_images: int
    num_proprio: int
    observed: str  # how a Dict observation is read, if that was guessed; else ""
    error: str  # why the environment could not be made; "" if it could
    is_late: bool = False  # it was not there in time
    images_per_second: float = 0.0  # of one environment, with its simulation; 0: it has no images
    is_started: bool = True  # False: the interpreter that should make it is missing


def measure_spaces(request: SimulatorRequest, limit_s: float = LONGEST_S) -> SpacesFacts:
    """Make one environment in the interpreter of the env workers."""
    path = [folder for folder in sys.path if folder] if request.python == sys.executable else []
    trial = run_trial(request, "make_environment", {"env": to_dict(request.env), "path": path}, limit_s)
    if trial.value:
        return SpacesFacts(**trial.value)
    return SpacesFacts(0, 0, "", trial.error, trial.is_late, is_started=trial.is_started)


def needs_images(config: RunConfig) -> bool:
    """Return whether the policy must see images."""
    return "images" in POLICIES.get(config.policy.kind).observes


def spaces(cluster: ClusterState) -> Iterator[Finding]:
    """Check that the environment is made, and has images for a policy that sees by them."""
    name = "environment spaces"
    for node, facts in cluster.simulators(SpacesFacts):
        if facts.is_late:
            cause = f"the environment was not made within {LONGEST_S:.0f} s"
            fix = "rlrun check-simulator with the same keys"
            yield Finding(name, Status.warning, node.node, cause, fix)
        elif facts.error:
            fix = "repair env.gymnasium.id, its kwargs or its package; rlrun check-simulator repeats it"
            yield Finding(name, Status.failed, node.node, f"the environment cannot be made: {facts.error}", fix)
        elif needs_images(cluster.config) and not facts.num_images:
            cause = f"the environment shows no images, and policy.kind={cluster.config.policy.kind} needs images"
            fix = "env.gymnasium.is_observed_as_pixels=true, which shows a rendered frame, or policy.kind=mlp"
            yield Finding(name, Status.failed, node.node, cause, fix)


def describe_spaces(cluster: ClusterState) -> str:
    """Example: "1 image, 8 proprioceptive numbers; image -> camera, state -> proprioception"."""
    for _, facts in cluster.simulators(SpacesFacts):
        counts = f"{facts.num_images} images, {facts.num_proprio} proprioceptive numbers"
        if facts.images_per_second:
            counts += f", {facts.images_per_second:.0f} images/s"
        return f"{counts}; {facts.observed}" if facts.observed else counts
    return "not looked at"


# --- inspections, named by specs -----------------------------------------------------------------------------

_RENDERER = Check(
    "renderer",
    "nodes with env workers under env.simulator=embedded or libero",
    "no renderer works; warns about a hanging driver, ray casting, and OpenGL on the CPU of a node with GPUs",
    renderer,
    rendered,
)
_SPACES = Check(
    "environment spaces",
    "nodes with env workers under env.simulator=gymnasium; before a run only under a policy that needs images",
    "it cannot be made, or has no images for a policy that needs them; warns if that takes over half a minute",
    spaces,
    describe_spaces,
)
WORLD_RENDERER = SimulatorInspection(measure_world_renderer, (_RENDERER,))
MUJOCO_RENDERER = SimulatorInspection(measure_mujoco_renderer, (_RENDERER,))
SPACES = SimulatorInspection(measure_spaces, (_SPACES,), is_measured_at_start=needs_images)
