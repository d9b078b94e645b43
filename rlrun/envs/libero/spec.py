"""Spec and settings of LIBERO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import NOT_NEGATIVE, Range, Section, bounded, named
from rlrun.config.simulator_spec import DeviceMemory, PlannedSpaces, SimulatorSpec, SimulatorTime
from rlrun.envs import opengl
from rlrun.system.errors import RunError

CAMERAS = ("agentview", "robot0_eye_in_hand")


class Backend(Enum):
    native = "native"  # MuJoCo with rlrun's controller and predicates, from scenes exported once
    robosuite = "robosuite"  # LIBERO's own code, in an interpreter that has it


class Pictures(Enum):
    exact = "exact"  # as LIBERO draws them
    fast = "fast"  # without reflections and shadows: for policies that are trained on such pictures only


@dataclass
class LiberoConfig(Section):
    """Settings for env.simulator=libero."""

    suite: str = named("libero_spatial")  # libero_object, libero_goal, libero_10, libero_90, or one of LIBERO-PRO
    task_ids: list[int] = bounded([], NOT_NEGATIVE)  # tasks of the suite, cycled by reset seed; empty: all
    starts: str | None = None  # FIRST:END of the published starts that reset seeds take, as "0:40"; None: all
    settle_steps: int = bounded(10, NOT_NEGATIVE)  # control steps before each episode, in which objects come to rest
    idle_gripper: float = bounded(-1.0, Range(-1, 1))  # gripper in these steps: -1 opens, 0 holds, 1 closes
    backend: Backend = Backend.native
    scenes: str = ".cache/rlrun/libero"  # folder of the exported tasks on the nodes of the env workers (backend=native)
    pictures: Pictures = Pictures.exact
    expert: str | None = None  # module:FUNCTION of expert(view) -> action, for rlrun.demos; None: no expert
    has_openness: bool = False  # True: gripper 1 open, 0 closed, as OpenVLA's checkpoints; False: -1 open, 1 closed


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return the sizes: hand position, axis-angle and two fingers; six increments of the hand and the gripper."""
    return PlannedSpaces(len(env.cameras), 8, 7, tuple(env.cameras), float(env.action_hz))


def control_time(env: EnvConfig) -> SimulatorTime:
    """Return the seconds of a control step by benchmarks/libero.py; a picture's are assumed, of a card's EGL."""
    if env.section(LiberoConfig).backend is Backend.robosuite:
        return SimulatorTime(env_step_s=0.04, picture_s=0.01)
    return SimulatorTime(step_s=0.0045, env_step_s=0.006, picture_s=0.01)  # rows are controlled together


def start_range(text: str) -> tuple[int, int]:
    """Return the first start and the one after the last. Raises ValueError. Example: "0:40" -> (0, 40)."""
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ValueError(f"{text!r} is no range FIRST:END of whole numbers with FIRST below END")
    return int(first), int(end)


def checks(config: RunConfig) -> Iterator[RunError]:
    """Yield an error for a range of starts that is none, and for an expert that would have no effect."""
    own = config.env.section(LiberoConfig)
    if own.starts is not None:
        try:
            start_range(own.starts)
        except ValueError as error:
            yield RunError(
                "The range of starts cannot be read.",
                key="env.libero.starts",
                value=own.starts,
                cause=str(error),
                remedy='Write "0:40" for the first forty starts of each task, quoted in YAML; null takes all.',
            )
    if own.expert is not None and own.backend is Backend.robosuite:
        yield RunError(
            "'env.libero.expert' would have no effect.",
            key="env.libero.expert",
            value=own.expert,
            cause="env.libero.backend=robosuite has no expert: experts read the state of rlrun's own world.",
            remedy="Set env.libero.backend=native, or drop it.",
        )


SPEC = SimulatorSpec(
    "libero",
    "rlrun.envs.libero.libero_env:make_libero",
    planned_spaces,
    LiberoConfig,
    memory=DeviceMemory(500_000_000, 200_000_000),
    host_bytes=2_500_000_000,  # three scenes, drawn by a card
    time=control_time,
    cameras=CAMERAS,
    packages=("mujoco", "robosuite"),
    has_expert=lambda env: env.section(LiberoConfig).expert is not None,
    checks=checks,
    variables=opengl.VARIABLES,
    environment=opengl.environment,
    node_checks="rlrun.doctor.simulator_checks:MUJOCO_RENDERER",
)
