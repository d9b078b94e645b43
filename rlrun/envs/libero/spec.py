"""Spec and settings of LIBERO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import NOT_NEGATIVE, Range, Section, bounded, named
from rlrun.config.simulator_spec import Decided, DeviceMemory, PlannedSpaces, SimulatorSpec, SimulatorTime, Variable
from rlrun.envs import opengl
from rlrun.system.errors import RunError

WARP_CACHE = Variable(
    "WARP_CACHE_PATH", ("env",), Decided.node, "the env workers of a node share the kernels that MuJoCo Warp compiles"
)
# Of one env worker on MuJoCo Warp. Seconds are estimates; bytes are those of the arrays for libero_goal.
WARP_STEP_S, WARP_ROW_S, WARP_PICTURE_S = 0.03, 1 / 30_000, 1 / 10_000  # a picture of 224 px
WARP_FIRST_BYTES, WARP_ROW_BYTES = 1_500_000_000, 500_000
WARP_COMPILE_S = 120  # once for each card's architecture and for each kind of scene
WARP_PIXEL_BYTES = 7  # packed by the ray tracer, and as the policy sees them
CAMERAS = ("agentview", "robot0_eye_in_hand")


class Backend(Enum):
    native = "native"  # MuJoCo with rlrun's controller and predicates, from scenes exported once
    robosuite = "robosuite"  # LIBERO's own code, in an interpreter that has it


class Physics(Enum):
    mujoco = "mujoco"  # on the CPU, row by row
    warp = (
        "warp"  # MuJoCo Warp: all rows together, and pictures by its ray tracer, on the worker's GPU; else on the CPU
    )


class Pictures(Enum):
    exact = "exact"  # as LIBERO draws them
    fast = "fast"  # without reflections and shadows: for policies that are trained on such pictures only


@dataclass
class LiberoConfig(Section):
    """Settings for env.simulator=libero."""

    suite: str = named("libero_spatial")  # libero_object, libero_goal, libero_10, libero_90, or one of LIBERO-PRO
    task_ids: list[int] = bounded([], NOT_NEGATIVE)  # tasks of the suite, cycled by reset seed; empty: all
    settle_steps: int = bounded(10, NOT_NEGATIVE)  # control steps before each episode, in which objects come to rest
    idle_gripper: float = bounded(-1.0, Range(-1, 1))  # gripper in these steps: -1 opens, 0 holds, 1 closes
    backend: Backend = Backend.native
    scenes: str = ".cache/rlrun/libero"  # folder of the exported tasks on the nodes of the env workers (backend=native)
    physics: Physics = Physics.mujoco  # what steps the exported tasks (backend=native)
    pictures: Pictures = Pictures.exact
    has_openness: bool = False  # True: gripper 1 open, 0 closed, as OpenVLA's checkpoints; False: -1 open, 1 closed


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return the sizes: hand position, axis-angle and two fingers; six increments of the hand and the gripper."""
    return PlannedSpaces(len(env.cameras), 8, 7, tuple(env.cameras), float(env.action_hz))


def is_warp(env: EnvConfig) -> bool:
    """Return whether MuJoCo Warp steps the world."""
    return env.section(LiberoConfig).physics is Physics.warp


def control_time(env: EnvConfig) -> SimulatorTime:
    """Return the seconds of a control step by benchmarks/libero.py; a picture's are assumed, of a card's EGL.

    Those of Warp are estimates from what its authors report of other scenes: it ran here on its CPU device only.
    """
    if env.section(LiberoConfig).backend is Backend.robosuite:
        return SimulatorTime(env_step_s=0.04, picture_s=0.01)
    if is_warp(env):  # rows step together, and the more there are, the longer it takes
        rows = env.num_envs // max(1, env.num_workers)
        picture_s = WARP_PICTURE_S * (env.image_size / 224) ** 2
        return SimulatorTime(step_s=WARP_STEP_S + rows * WARP_ROW_S, picture_s=picture_s)
    return SimulatorTime(step_s=0.0045, env_step_s=0.006, picture_s=0.01)  # rows are controlled together


def device_memory(env: EnvConfig) -> DeviceMemory:
    """Return the accelerator memory of an env worker: OpenGL's, or Warp's arrays and pictures as they are allocated."""
    if not is_warp(env):
        return DeviceMemory(500_000_000, 200_000_000)
    pictures = len(env.cameras) * env.image_size**2 * WARP_PIXEL_BYTES
    return DeviceMemory(WARP_FIRST_BYTES + WARP_ROW_BYTES + pictures, WARP_ROW_BYTES + pictures)


def checks(config: RunConfig) -> Iterator[RunError]:
    """Yield an error for settings that Warp cannot fulfil."""
    own = config.env.section(LiberoConfig)
    if not is_warp(config.env):
        return
    if own.backend is Backend.robosuite:
        yield RunError(
            "robosuite's LIBERO does not run on MuJoCo Warp.",
            key="env.libero.physics",
            value="warp",
            cause="env.libero.backend=robosuite is LIBERO's own code, on MuJoCo.",
            remedy="Take env.libero.backend=native, or env.libero.physics=mujoco.",
        )
    if own.pictures is Pictures.exact:
        yield RunError(
            "MuJoCo Warp cannot draw LIBERO's pictures exactly.",
            key="env.libero.pictures",
            value="exact",
            cause="Its ray tracer draws no reflections, no highlights and no soft edges.",
            remedy="Set env.libero.pictures=fast for a policy that is trained on such pictures, or "
            "env.libero.physics=mujoco.",
        )


SPEC = SimulatorSpec(
    "libero",
    "rlrun.envs.libero.libero_env:make_libero",
    planned_spaces,
    LiberoConfig,
    memory=device_memory,
    host_bytes=2_500_000_000,  # three scenes, drawn by a card
    time=control_time,
    cameras=CAMERAS,
    packages=("mujoco", "robosuite", "mujoco-warp", "warp-lang"),
    checks=checks,
    variables=(*opengl.VARIABLES, WARP_CACHE),
    environment=opengl.environment,
    node_checks="rlrun.doctor.libero_checks:INSPECTION",
)
