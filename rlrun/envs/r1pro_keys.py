"""Checks and sizes of the R1Pro from configuration keys, for all simulators that have it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from rlrun.config.faults import wrong_names
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import COUNT, POSITIVE, Section, bounded, named
from rlrun.config.simulator_spec import Component, Conventions, PlannedSpaces
from rlrun.system.errors import RunError

NUM_ACTION_DIMS = {"base": 3, "trunk": 4, "arm_left": 7, "gripper_left": 1, "arm_right": 7, "gripper_right": 1}
NUM_PROPRIO = {"full_256": 256, "local_61": 61}
# Names of the camera links; OmniGibson's observation key is "robot_r1:<name>:Camera:0".
CAMERAS = ("zed_link", "left_realsense_link", "right_realsense_link")


class ProprioLayout(Enum):
    full_256 = "full_256"  # OmniGibson's R1Pro vector of 2025
    local_61 = "local_61"  # without the global pose, as the 2026 track requires


class RewardMode(Enum):
    potential = "potential"  # r_potential * change of the fraction of satisfied goal literals
    dense = "dense"  # the potential plus shaping towards the next literal


@dataclass
class R1ProConfig(Section):
    """Settings of a simulator whose robot is the R1Pro; those of one kind extend them."""

    section_name: ClassVar[str]  # below env

    activity: str = named("turning_on_radio")  # BDDL activity
    physics_hz: int = bounded(120, COUNT)
    controlled: list[str] = named(["arm_right", "gripper_right"])
    cameras: list[str] = named(["zed_link"])
    proprio: ProprioLayout = ProprioLayout.local_61
    reward: RewardMode = RewardMode.dense
    reward_potential: float = bounded(1.0, POSITIVE)  # r_potential

    def key(self, name: str) -> str:
        """Return the key of a setting. Example: "env.omnigibson.cameras"."""
        return f"env.{self.section_name}.{name}"


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Return the exact sizes: the driven parts, the cameras, and the layout of proprioception."""
    own = env.section(R1ProConfig)
    num_actions = sum(NUM_ACTION_DIMS[part] for part in own.controlled)
    sizes = len(own.cameras), NUM_PROPRIO[own.proprio.value], num_actions
    return PlannedSpaces(*sizes, tuple(own.cameras), float(env.action_hz))


def conventions(env: EnvConfig) -> Conventions:
    """Return the names and formats of vla-eval's Behavior1KBenchmark."""
    joints = Component("joints", sum(NUM_ACTION_DIMS.values()), "joint_positions_r1pro")
    names = dict(zip(CAMERAS, ("head", "left_wrist", "right_wrist"), strict=True))
    return Conventions((joints,), cameras=names, parameters={"send_proprio": True})


def checks(config: RunConfig) -> Iterator[RunError]:
    """Check parts and cameras, each named once and at least one, and that physics steps divide a control step."""
    own = config.env.section(R1ProConfig)
    action_hz = config.env.action_hz
    yield from wrong_names(own.key("controlled"), own.controlled, tuple(NUM_ACTION_DIMS))
    yield from wrong_names(own.key("cameras"), own.cameras, CAMERAS)
    if own.physics_hz % action_hz:
        below = own.physics_hz // action_hz * action_hz
        yield RunError(
            f"{own.key('physics_hz')} ({own.physics_hz}) is no multiple of env.action_hz ({action_hz}).",
            key=own.key("physics_hz"),
            value=own.physics_hz,
            cause="A control step is a whole number of physics steps.",
            remedy=f"Take {below + action_hz}, or another env.action_hz.",
        )
