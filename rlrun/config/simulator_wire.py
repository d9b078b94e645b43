"""A simulator as evaluators on the other side of a connection see it: names of cameras, formats of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun.config.schema import EnvConfig

GRIPPER_OPEN_01 = "open_01"  # 1 open, 0 closed: vla-eval has no name for it


@dataclass(frozen=True)
class Component:
    """Consecutive numbers of an action. Example: Component("rotation", 3, "axis_angle")."""

    name: str
    size: int
    format: str  # of vla_eval.specs, or GRIPPER_OPEN_01


@dataclass(frozen=True)
class Conventions:
    """What a world's cameras and numbers are called in vla-eval's specs, so that they mean the same over its wire.

    Example: Conventions((Component("joints", 23, "joint_positions_r1pro"),), cameras={"zed_link": "head"})
    """

    actions: tuple[Component, ...] = ()  # of the whole robot, in order; (): numbers without a declared meaning
    state: str = "raw"  # format of proprioception
    cameras: Mapping[str, str] = field(default_factory=dict)  # the simulator's names -> vla-eval's; others are equal
    # parameters of vla-eval's benchmark of this world, with the values at which both are the same world
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WireSpec:
    """What a simulator's pictures and numbers are called over a wire. Read by `rlrun serve` and by remote policies.

    Example: WireSpec(lambda env: Conventions(cameras={"zed_link": "head"}))
    """

    conventions: Callable[[EnvConfig], Conventions] = lambda env: Conventions()  # names and formats in vla-eval
