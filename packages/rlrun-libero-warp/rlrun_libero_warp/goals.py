"""LIBERO's goals in a Warp kernel: the predicates of rlrun.envs.libero as a table, judged for all rows at once.

Thresholds are compared in double precision, as they were exported; positions are Warp's, in single precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import warp as wp

from rlrun.envs.libero.goals import (
    CENTRE_DISTANCE,
    FLOOR_MARGIN,
    TOP_HEIGHT,
    TOP_MARGIN,
    Goal,
    Thing,
)

wp.set_module_options({"enable_backward": False})

_ANY_JOINT, _ALL_JOINTS, _INSIDE, _ON_THING, _ON_REGION = range(5)
_KINDS = {"open": _ANY_JOINT, "turnon": _ANY_JOINT, "close": _ALL_JOINTS, "turnoff": _ALL_JOINTS}


@wp.struct
class Literal:
    """A predicate with its arguments."""

    kind: int
    upper: int  # body that is in or on something
    lower: int  # body under it, or site of a region
    size: wp.vec3d  # half lengths of the region
    touch: int  # pair that must touch; -1: none
    low: wp.float64  # of joints
    high: wp.float64
    first_joint: int  # in the table of joints
    num_joints: int


@wp.func
def _joints_hold(literal: Literal, joints: wp.array[int], qpos: wp.array2d[float], row: int):
    count = wp.int32(0)
    for i in range(literal.num_joints):
        q = wp.float64(qpos[row, joints[literal.first_joint + i]])
        if literal.low <= q and q <= literal.high:
            count += 1
    if literal.kind == _ANY_JOINT:
        return count > 0
    return count == literal.num_joints


@wp.func
def _is_inside(literal: Literal, point: wp.vec3d, centre: wp.vec3d, rotation: wp.mat33d):
    size = rotation * literal.size
    offset = point - centre
    for i in range(3):
        low = -wp.abs(size[i])
        if i == 2:
            low -= wp.float64(FLOOR_MARGIN)
        if not (offset[i] > low and offset[i] < wp.abs(size[i])):
            return False
    return True


@wp.func
def _is_on_top(literal: Literal, point: wp.vec3d, centre: wp.vec3d, rotation: wp.mat33d):
    offset = rotation * (point - centre)
    above = offset[2] - literal.size[2]
    is_within = wp.abs(offset[0]) < literal.size[0] and wp.abs(offset[1]) < literal.size[1]
    return is_within and above > -wp.float64(TOP_MARGIN) and above < wp.float64(TOP_HEIGHT)


@wp.func
def _holds(
    literal: Literal,
    joints: wp.array[int],
    touches: wp.array2d[int],
    qpos: wp.array2d[float],
    xpos: wp.array2d[wp.vec3],
    site_xpos: wp.array2d[wp.vec3],
    site_xmat: wp.array2d[wp.mat33],
    row: int,
):
    if literal.kind == _ANY_JOINT or literal.kind == _ALL_JOINTS:
        return _joints_hold(literal, joints, qpos, row)
    if literal.touch >= 0 and touches[row, literal.touch] == 0:
        return False
    above = wp.vec3d(xpos[row, literal.upper])
    if literal.kind == _ON_THING:
        under = wp.vec3d(xpos[row, literal.lower])
        apart = wp.length(wp.vec2d(under[0] - above[0], under[1] - above[1]))
        return under[2] <= above[2] and apart < wp.float64(CENTRE_DISTANCE)
    centre = wp.vec3d(site_xpos[row, literal.lower])
    rotation = wp.mat33d(site_xmat[row, literal.lower])
    if literal.kind == _INSIDE:
        return _is_inside(literal, above, centre, rotation)
    return _is_on_top(literal, above, centre, rotation)


@wp.kernel
def _find_touches(
    num_contacts: wp.array[int],
    contact_geoms: wp.array[wp.vec2i],
    contact_rows: wp.array[int],
    ones: wp.array2d[bool],
    others: wp.array2d[bool],
    touches: wp.array2d[int],
):
    contact, pair = wp.tid()
    if contact >= num_contacts[0]:
        return
    a = contact_geoms[contact][0]
    b = contact_geoms[contact][1]
    if a < 0 or b < 0:
        return
    if (ones[pair, a] and others[pair, b]) or (others[pair, a] and ones[pair, b]):
        touches[contact_rows[contact], pair] = 1


@wp.kernel
def _judge(
    tasks: wp.array[int],
    first: wp.array[int],
    literals: wp.array[Literal],
    joints: wp.array[int],
    touches: wp.array2d[int],
    qpos: wp.array2d[float],
    xpos: wp.array2d[wp.vec3],
    site_xpos: wp.array2d[wp.vec3],
    site_xmat: wp.array2d[wp.mat33],
    success: wp.array[int],
):
    row = wp.tid()
    task = tasks[row]
    found = wp.int32(1)
    for i in range(first[task], first[task + 1]):
        if not _holds(literals[i], joints, touches, qpos, xpos, site_xpos, site_xmat, row):
            found = 0
    success[row] = found


class BatchGoals:
    """The goals of tasks of one scene, for B rows that each have one of them."""

    def __init__(self, goals: Sequence[Goal], num_rows: int):
        """Made on the device that is current."""
        self._pairs: list[tuple[Thing, Thing]] = []
        self._joints: list[int] = []
        literals = [[self._literal(goal, *literal) for literal in goal.literals] for goal in goals]
        self.tasks = wp.zeros(num_rows, dtype=int)  # number of each row's goal
        self.success = wp.zeros(num_rows, dtype=int)
        self._first = wp.array(np.cumsum([0, *map(len, literals)]), dtype=int)
        self._literals = wp.array([one for of_goal in literals for one in of_goal], dtype=Literal)
        self._table = wp.array(self._joints or [0], dtype=int)
        ones, others = (
            ([thing.geoms for thing in side] for side in zip(*self._pairs, strict=True)) if self._pairs else ([], [])
        )
        self._ones = wp.array(np.array(ones, bool), dtype=bool)
        self._others = wp.array(np.array(others, bool), dtype=bool)
        self._touches = wp.zeros((num_rows, max(1, len(self._pairs))), dtype=int)

    def _literal(self, goal: Goal, name: str, *arguments: str) -> Any:
        things = [goal.things[argument] for argument in arguments]
        literal = Literal()
        literal.touch = -1
        if name in _KINDS:
            thing = things[0]
            literal.kind = _KINDS[name]
            (literal.low, literal.high) = thing.intervals[name]
            literal.first_joint = len(self._joints)
            literal.num_joints = len(thing.joints)
            self._joints += thing.joints
            return literal
        upper = things[0]
        lower = things[-1]
        assert isinstance(upper, Thing)  # Goal has refused everything else
        literal.upper = upper.body
        if isinstance(lower, Thing):
            literal.kind = _ON_THING
            literal.lower = lower.body
            literal.touch = self._pair(lower, upper)
            return literal
        literal.kind = _INSIDE
        literal.lower = lower.site
        literal.size = wp.vec3d(lower.size)
        if name == "on":
            literal.kind = _ON_REGION
            literal.touch = -1 if lower.parent is None else self._pair(lower.parent, upper)
            if not lower.has_top:  # which holds always
                literal.kind = _ALL_JOINTS
                literal.num_joints = 0
                literal.touch = -1
        return literal

    def _pair(self, one: Thing, other: Thing) -> int:
        self._pairs.append((one, other))
        return len(self._pairs) - 1

    def judge(self, data: Any) -> None:
        """Write into `success` whether each row's goal holds after its last control step."""
        if self._pairs:
            self._touches.zero_()
            contact = data.contact
            wp.launch(
                _find_touches,
                dim=(data.naconmax, len(self._pairs)),
                inputs=[data.nacon, contact.geom, contact.worldid, self._ones, self._others],
                outputs=[self._touches],
            )
        wp.launch(
            _judge,
            dim=len(self.success),
            inputs=[self.tasks, self._first, self._literals, self._table, self._touches]
            + [data.qpos, data.xpos, data.site_xpos, data.site_xmat],
            outputs=[self.success],
        )
