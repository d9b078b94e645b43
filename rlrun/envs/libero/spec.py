"""The spec of LIBERO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlrun.config.schema import EnvConfig
from rlrun.config.simulator_spec import DeviceMemory, PlannedSpaces, SimulatorSpec
from rlrun.envs import opengl
from rlrun.envs.libero.settings import LiberoConfig

CAMERAS = ("agentview", "robot0_eye_in_hand")


def make_libero(config: EnvConfig, num_envs: int, progress: Callable[[], None]) -> Any:
    """Make `num_envs` rows of the suite `env.libero.suite`."""
    from rlrun.envs.opengl import drop_unlisted_device

    drop_unlisted_device()
    from rlrun.envs.libero import libero_env

    return libero_env.make_libero(config, num_envs, progress)


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return the sizes: hand position, axis-angle and two fingers; six increments of the hand and the gripper."""
    return PlannedSpaces(len(env.cameras), 8, 7, tuple(env.cameras), float(env.action_hz))


SPEC = SimulatorSpec(
    "libero",
    make_libero,
    planned_spaces,
    LiberoConfig,
    memory=DeviceMemory(500_000_000, 200_000_000),
    cameras=CAMERAS,
    packages=("mujoco", "robosuite"),
    variables=opengl.VARIABLES,
    environment=opengl.environment,
    node_checks="rlrun.doctor.simulator_checks:MUJOCO_RENDERER",
)
