"""What a policy will see and do, as far as a configuration tells it before a simulator runs."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.schema import EnvConfig, Simulator

NUM_ACTION_DIMS = {"base": 3, "trunk": 4, "arm_left": 7, "gripper_left": 1, "arm_right": 7, "gripper_right": 1}
NUM_PROPRIO = {"full_256": 256, "local_61": 61}


@dataclass(frozen=True)
class PlannedSpaces:
    """Example: PlannedSpaces(num_images=3, num_proprio=61, num_actions=23)."""

    num_images: int
    num_proprio: int
    num_actions: int


# Only a running Gymnasium environment knows its sizes; most have less, and a plan's budget errs on the safe side.
OF_GYMNASIUM = PlannedSpaces(num_images=1, num_proprio=400, num_actions=32)


OF_LIBERO = PlannedSpaces(num_images=2, num_proprio=8, num_actions=7)


def planned_spaces(env: EnvConfig) -> PlannedSpaces:
    """Exact for the R1Pro's worlds; for Gymnasium an upper bound of most environments."""
    if env.simulator is Simulator.gymnasium:
        return OF_GYMNASIUM
    if env.simulator is Simulator.libero:
        return OF_LIBERO
    num_actions = sum(NUM_ACTION_DIMS[part] for part in env.controlled)
    return PlannedSpaces(len(env.cameras), NUM_PROPRIO[env.proprio.value], num_actions)
