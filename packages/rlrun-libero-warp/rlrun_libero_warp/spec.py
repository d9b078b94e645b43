"""Spec and settings of LIBERO on MuJoCo Warp."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.schema import EnvConfig
from rlrun.config.simulator_process import Decided, ProcessSpec, Variable
from rlrun.config.simulator_spec import (
    EvaluationSpec,
    ResourceSpec,
    SimulatorMemory,
    SimulatorSpec,
    SimulatorTime,
    Splits,
    WireSpec,
    WorldSpec,
)
from rlrun.envs import opengl
from rlrun.envs.libero import spec as libero

CACHE = Variable(
    "WARP_CACHE_PATH", ("env",), Decided.node, "the env workers of a node share the kernels that MuJoCo Warp compiles"
)
# Of one env worker. Seconds are estimates from what Warp's authors report of other scenes; bytes are those of the
# arrays for libero_goal, and of a pixel as the ray tracer packs it and as the policy sees it.
STEP_S = 0.03
ROW_S = 1 / 30_000
PICTURE_S = 1 / 10_000  # of 224 px
FIRST_BYTES = 1_500_000_000
ROW_BYTES = 500_000
PIXEL_BYTES = 7
COMPILE_S = 120  # once for each card's architecture and for each kind of scene
DEVIATIONS = ["pictures have no reflections and shadows", "physics in single precision, by MuJoCo Warp"]


@dataclass
class LiberoWarpConfig(libero.SuiteConfig):
    """Settings for env.simulator=libero_warp."""

    section_name = "libero_warp"


def control_time(env: EnvConfig) -> SimulatorTime:
    """Return the estimated seconds of a control step: rows step together, and the more there are, the longer."""
    rows = env.num_envs // max(1, env.num_workers)
    picture_s = PICTURE_S * (env.image_size / 224) ** 2
    return SimulatorTime(step_s=STEP_S + rows * ROW_S, picture_s=picture_s)


def device_memory(env: EnvConfig) -> SimulatorMemory:
    """Return the accelerator memory of an env worker: Warp's arrays and pictures, as they are allocated."""
    pictures = len(env.section(LiberoWarpConfig).cameras) * env.image_size**2 * PIXEL_BYTES
    return SimulatorMemory(FIRST_BYTES + ROW_BYTES + pictures, ROW_BYTES + pictures)


def splits(env: EnvConfig) -> Splits:
    """Return where episodes of each split begin, and what differs from LIBERO's protocol."""
    return libero.splits_of(env, DEVIATIONS)


SPEC = SimulatorSpec(
    "libero_warp",
    "rlrun_libero_warp.start:make_with_warp",
    WorldSpec(libero.planned_spaces, own_limit=libero.own_limit),
    LiberoWarpConfig,
    libero.checks,
    ResourceSpec(
        memory=device_memory,
        host_memory=libero.host_memory,
        time=control_time,
        node_checks="rlrun_libero_warp.node_checks:INSPECTION",
    ),
    ProcessSpec(
        packages=("mujoco", "mujoco-warp", "warp-lang"),
        variables=(*opengl.VARIABLES, CACHE),
        environment=opengl.environment,
    ),
    EvaluationSpec(splits=splits, task=libero.task_name, perturbations=libero.perturbations),
    WireSpec(libero.conventions, libero.unusual_keys),
)
