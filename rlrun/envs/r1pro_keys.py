"""Checks and sizes of the R1Pro from configuration keys, for all simulators that have it."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.simulator_wire import Component, Conventions
from rlrun.config.simulator_world import PlannedSpaces
from rlrun.system.errors import RunError

NUM_ACTION_DIMS = {"base": 3, "trunk": 4, "arm_left": 7, "gripper_left": 1, "arm_right": 7, "gripper_right": 1}
NUM_PROPRIO = {"full_256": 256, "local_61": 61}
# Names of the camera links; OmniGibson's observation key is "robot_r1:<name>:Camera:0".
CAMERAS = ("zed_link", "left_realsense_link", "right_realsense_link")


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return the exact sizes: the driven parts, the cameras, and the layout of proprioception."""
    num_actions = sum(NUM_ACTION_DIMS[part] for part in env.controlled)
    sizes = len(env.cameras), NUM_PROPRIO[env.proprio.value], num_actions
    return PlannedSpaces(*sizes, tuple(env.cameras), float(env.action_hz))


def conventions(env: EnvConfig) -> Conventions:
    """Return the names and formats of vla-eval's Behavior1KBenchmark."""
    joints = Component("joints", sum(NUM_ACTION_DIMS.values()), "joint_positions_r1pro")
    names = dict(zip(CAMERAS, ("head", "left_wrist", "right_wrist"), strict=True))
    return Conventions((joints,), cameras=names, parameters={"send_proprio": True})


def checks(config: RunConfig) -> Iterator[RunError]:
    """Check that the policy drives at least one part, each named once, and that physics steps divide a control step."""
    env = config.env
    if (
        not env.controlled
        or set(env.controlled) - set(NUM_ACTION_DIMS)
        or len(set(env.controlled)) < len(env.controlled)
    ):
        yield RunError(
            "'env.controlled' does not name parts of the robot, each once.",
            key="env.controlled",
            value=list(env.controlled),
            cause=f"Known: {', '.join(NUM_ACTION_DIMS)}.",
            remedy="Name each once.",
        )
    if env.physics_hz % env.action_hz:
        below = env.physics_hz // env.action_hz * env.action_hz
        yield RunError(
            f"env.physics_hz ({env.physics_hz}) is no multiple of env.action_hz ({env.action_hz}).",
            key="env.physics_hz",
            value=env.physics_hz,
            cause="A control step is a whole number of physics steps.",
            remedy=f"Take {below + env.action_hz}, or another env.action_hz.",
        )
