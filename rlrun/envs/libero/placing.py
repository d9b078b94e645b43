"""Scripted expert of LIBERO's goals that put one thing on or into another: it grasps from above, carries, and lets go.

It reads the goal's literals, so that it solves whichever task of a suite a row has, and the sentence alone tells a
policy which one. It has no memory: what it does next follows from where the hand, the fingers and the things are.
"""

from __future__ import annotations

import numpy as np

from rlrun.envs.libero.experts import CLOSED, OPEN, ExpertView, turn_on_the_stove
from rlrun.envs.libero.goals import Region, Thing

FINGERS = ("gripper0_finger1_pad_collision", "gripper0_finger2_pad_collision")  # geoms


# Offsets of the grip site from the body of a thing, m, whose fingers close along y: bowls are taken at the rim.
GRASPS = {"akita_black_bowl": (0.0, 0.055, 0.045), "cream_cheese": (0.0, 0.0, 0.01)}
CLEARANCE = 0.10  # m that a carried thing passes above where it is put
CARRY_HEIGHT = 1.10  # m above the floor, of the hand that carries: above all fixtures but the cabinet
NEAR = 0.012  # m beside a point, from where the hand goes down
AT = 0.012  # m around a point, where the fingers close or open
RELEASE = 0.025  # m above its place, where a thing is let go


def solve(view: ExpertView) -> np.ndarray:
    """Return the next action for the row's goal. Raises KeyError for a goal of another kind."""
    (name, *arguments), *_ = view.goal.literals
    if name == "turnon":
        return turn_on_the_stove(view)
    if name not in ("on", "in") or len(arguments) != 2:
        raise KeyError(f"a goal ({name} {' '.join(arguments)}), which this expert does not know")
    thing = view.goal.things[arguments[0]]
    assert isinstance(thing, Thing)
    grasp = next((grasp for kind, grasp in GRASPS.items() if arguments[0].startswith(kind)), None)
    if grasp is None:
        raise KeyError(f"{arguments[0]}, which this expert does not know how to grasp")
    target = place_of(view, view.goal.things[arguments[1]])
    return put(view, thing, np.array(grasp), target)


def put(view: ExpertView, thing: Thing, offset: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the action that brings a thing to a point. offset: of the hand that holds it; target: [3], m."""
    position = thing.position(view.data)
    taken = position + offset
    above = target + offset
    off_target = float(np.hypot(*(position - target)[:2]))
    if is_held(view, thing):
        height = max(CARRY_HEIGHT, above[2] + CLEARANCE)
        if off_target > NEAR:
            far = off_target > 3 * NEAR
            low = far and view.hand[2] < height - 0.03
            over = view.hand if low else view.hand + (target - position)
            return view.towards(np.array([over[0], over[1], height]), CLOSED, gain=2.0)
        if position[2] > target[2] + RELEASE:
            return view.towards(view.hand + [0, 0, target[2] - position[2]], CLOSED, gain=1.0)
        return view.towards(view.hand, OPEN, gain=1.0)
    if off_target < 2 * NEAR and abs(position[2] - target[2]) < 3 * RELEASE:
        return view.towards(view.hand + [0, 0, CLEARANCE], OPEN, gain=1.0)  # it lies there: the hand goes away
    ahead = view.hand - taken
    aside = float(np.hypot(*ahead[:2]))
    if aside < AT and abs(ahead[2]) < AT:
        return view.towards(taken, CLOSED, gain=1.0)
    height = float(np.clip(3.0 * (aside - NEAR), 0.0, CLEARANCE))
    return view.towards(taken + [0, 0, height], OPEN, gain=2.0)


def is_held(view: ExpertView, thing: Thing) -> bool:
    """Return whether both fingers touch a thing."""
    touched = set()
    for one, other in view.data.contact.geom.tolist():
        for finger, geom in ((one, other), (other, one)):
            name = view.model.geom(finger).name
            if name in FINGERS and thing.geoms[geom]:
                touched.add(name)
    return len(touched) == len(FINGERS)


def place_of(view: ExpertView, target: Thing | Region) -> np.ndarray:
    """Return the point [3] at which a thing lies on or in a target, m."""
    if isinstance(target, Thing):
        return target.position(view.data) + [0, 0, 0.01]
    centre = view.data.site_xpos[target.site].copy()
    rotation = view.data.site_xmat[target.site].reshape(3, 3)
    centre[2] += float(np.abs(rotation @ target.size)[2]) if target.has_top else 0.0
    return centre
