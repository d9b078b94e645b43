"""LIBERO's goals: predicates of BDDL, computed from MuJoCo's state exactly as LIBERO computes them.

They read positions and contacts of the last physics step's beginning, as LIBERO does after a control step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np

TOP_HEIGHT = 0.10  # m above a region's upper side in which something lies on it
TOP_MARGIN = 0.005  # m below that side
FLOOR_MARGIN = 0.01  # m below a region in which something is in it
CENTRE_DISTANCE = 0.03  # m between the centres of two things that lie on one another

Predicate = Callable[[mujoco.MjData], bool]
Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Thing:
    """An object or a fixture."""

    body: int
    geoms: np.ndarray  # bool [ngeom], those that touch
    joints: list[int]  # in qpos
    intervals: dict[str, Interval] = field(default_factory=dict)  # open, close, turnon, turnoff -> joint positions

    def position(self, data: mujoco.MjData) -> np.ndarray:
        return data.xpos[self.body]


@dataclass(frozen=True, eq=False)
class Region:
    """A site of an object or of the table."""

    site: int
    parent: Thing | None
    size: np.ndarray  # [3], half lengths
    joints: list[int]
    has_top: bool
    intervals: dict[str, Interval] = field(default_factory=dict)


class Goal:
    """A conjunction of predicates. Raises ValueError for a predicate that LIBERO does not have."""

    def __init__(self, model: mujoco.MjModel, goal: Sequence[Sequence[str]], things: dict[str, dict[str, Any]]):
        plain_things = {name: _thing(model, about) for name, about in things.items() if "site" not in about}
        regions = {name: _region(model, about, plain_things) for name, about in things.items() if "site" in about}
        self.things: dict[str, Thing | Region] = {**plain_things, **regions}
        self.literals = tuple(tuple(literal) for literal in goal)
        self._predicates = [self._predicate(*literal) for literal in goal]

    def holds(self, data: mujoco.MjData) -> bool:
        """Return whether all its predicates hold."""
        return all(predicate(data) for predicate in self._predicates)

    def is_on(self, data: mujoco.MjData, name: str) -> bool:
        """Return whether a thing such as a stove is turned on."""
        return _any_joint(self.things[name], "turnon", data)

    def _predicate(self, name: str, *arguments: str) -> Predicate:
        things = [self.things[argument] for argument in arguments]
        if name in ("open", "turnon") and len(things) == 1:
            return lambda data: _any_joint(things[0], name, data)
        if name in ("close", "turnoff") and len(things) == 1:
            return lambda data: _all_joints(things[0], name, data)
        if name == "in" and isinstance(things[-1], Region) and isinstance(things[0], Thing):
            inner = things[0]
            region = things[-1]
            return lambda data: _contains(region, inner.position(data), data)
        if name == "on" and isinstance(things[0], Thing) and len(things) == 2:
            upper = things[0]
            lower = things[1]
            return lambda data: _supports(lower, upper, data)
        raise ValueError(
            f"the goal ({name} {' '.join(arguments)}) is of a kind that rlrun's LIBERO world does not know"
        )


def _thing(model: mujoco.MjModel, about: dict[str, Any]) -> Thing:
    geoms = np.zeros(model.ngeom, bool)
    geoms[[model.geom(name).id for name in about["geoms"]]] = True
    return Thing(model.body(about["body"]).id, geoms, _positions(model, about["joints"]), _intervals(about))


def _region(model: mujoco.MjModel, about: dict[str, Any], things: dict[str, Thing]) -> Region:
    joints = _positions(model, about["joints"])
    parent = None if about["parent"] is None else things[about["parent"]]
    return Region(
        model.site(about["site"]).id, parent, np.array(about["size"]), joints, about["has_top"], _intervals(about)
    )


def _positions(model: mujoco.MjModel, joints: Sequence[str]) -> list[int]:
    return [int(model.joint(name).qposadr[0]) for name in joints]


def _intervals(about: dict[str, Any]) -> dict[str, Interval]:
    intervals: dict[str, Interval] = {}
    for name in ("open", "close", "turnon", "turnoff"):
        if name in about:
            low, high = about[name]
            intervals[name] = (-np.inf if low is None else low, np.inf if high is None else high)
    return intervals


def _any_joint(thing: Thing | Region, name: str, data: mujoco.MjData) -> bool:
    low, high = thing.intervals[name]
    return any(low <= data.qpos[joint] <= high for joint in thing.joints)


def _all_joints(thing: Thing | Region, name: str, data: mujoco.MjData) -> bool:
    low, high = thing.intervals[name]
    return all(low <= data.qpos[joint] <= high for joint in thing.joints)


def _contains(region: Region, position: np.ndarray, data: mujoco.MjData) -> bool:
    """Return whether a point is in a region's box, which is taken as parallel to the axes of the world."""
    centre = data.site_xpos[region.site]
    size = np.abs(data.site_xmat[region.site].reshape(3, 3) @ region.size)
    low = centre - size
    high = centre + size
    low[2] -= FLOOR_MARGIN
    return bool((position > low).all() and (position < high).all())


def _supports(lower: Thing | Region, upper: Thing, data: mujoco.MjData) -> bool:
    if isinstance(lower, Thing):
        under = lower.position(data)
        above = upper.position(data)
        is_near = bool(np.linalg.norm(under[:2] - above[:2]) < CENTRE_DISTANCE)
        return bool(under[2] <= above[2]) and is_near and _touch(lower, upper, data)
    if not lower.has_top:
        return True
    rotation = data.site_xmat[lower.site].reshape(3, 3)
    offset = rotation @ (upper.position(data) - data.site_xpos[lower.site])
    top = lower.size[2]
    is_above = bool(top - TOP_MARGIN < offset[2] < top + TOP_HEIGHT)
    is_within = bool((np.abs(offset[:2]) < lower.size[:2]).all())
    return is_above and is_within and (lower.parent is None or _touch(lower.parent, upper, data))


def _touch(one: Thing, other: Thing, data: mujoco.MjData) -> bool:
    geoms = data.contact.geom  # int [ncon, 2]
    first = geoms[:, 0]
    second = geoms[:, 1]
    return bool(((one.geoms[first] & other.geoms[second]) | (other.geoms[first] & one.geoms[second])).any())
