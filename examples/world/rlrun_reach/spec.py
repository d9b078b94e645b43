"""What rlrun has to know of this world. Imported on every node and for --help, so it imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.config.sections import POSITIVE, Section, bounded
from rlrun.config.simulator_spec import PlannedSpaces, SimulatorSpec, WorldSpec


@dataclass
class ReachConfig(Section):
    """The section `env.reach`; the comments are shown by --help."""

    goal_radius: float = bounded(0.2, POSITIVE)  # of the target, in a plane of 2 by 2
    step_size: float = bounded(0.1, POSITIVE)  # at an action of 1


def make_reach(config, num_envs, progress):
    """The rows, and the world only now."""
    from rlrun.edges.spaces import Spaces
    from rlrun.envs.rows import RowsEnv
    from rlrun_reach.reach import Reach

    spaces = Spaces(
        num_actions=2,
        num_choices=None,
        action_low=(-1.0, -1.0),
        action_high=(1.0, 1.0),
        num_proprio=2,
        num_images=1,
        action_names=("x", "y"),
    )
    own, size = config.section(ReachConfig), config.image_size
    limit = config.max_control_steps
    return RowsEnv(lambda: Reach(own, size), num_envs, spaces, size, limit, progress)


SPEC = SimulatorSpec(
    "reach",
    make_reach,
    WorldSpec(lambda env: PlannedSpaces(num_images=1, num_proprio=2, num_actions=2)),
    ReachConfig,
)
