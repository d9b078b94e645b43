"""A simulator as the checks of the configuration and policies see it: its sizes, cameras, robot and expert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlrun.config.schema import EnvConfig


@dataclass(frozen=True)
class PlannedSpaces:
    """The sizes of a policy's inputs and actions, known before a simulator runs.

    Example: PlannedSpaces(num_images=3, num_proprio=61, num_actions=23).
    """

    num_images: int
    num_proprio: int
    num_actions: int
    cameras: tuple[str, ...] = ()  # num_images names; (): unknown before it runs
    control_hz: float | None = None  # control steps per second; None: unknown before it runs
    is_exact: bool = True  # False: upper bounds


@dataclass(frozen=True)
class WorldSpec:
    """What a simulator shows and takes, known before it runs. Read by the checks of the configuration and by policies.

    Example: WorldSpec(lambda env: PlannedSpaces(num_images=1, num_proprio=2, num_actions=2))
    """

    planned_spaces: Callable[[EnvConfig], PlannedSpaces]  # exact, or an upper bound if only a running env knows
    is_r1pro: bool = False  # its section, which extends rlrun.envs.r1pro_keys.R1ProConfig, describes the robot
    # (EnvConfig) -> whether `expert_action` works, so that demonstrations can be recorded
    has_expert: Callable[[EnvConfig], bool] = lambda env: False
    # (EnvConfig) -> control steps after which an episode ends as published or registered; None: unknown
    own_limit: Callable[[EnvConfig], int | None] = lambda env: None
