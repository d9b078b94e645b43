"""Predicates of BDDL, on states placed by hand in a small scene."""

from __future__ import annotations

import json
from pathlib import Path

import mujoco
import pytest

from rlrun.envs.libero.goals import Goal
from tests.unit.envs.libero import small_suite


class World:
    """The small scene, and its goals."""

    def __init__(self, folder: Path):
        small_suite.write(folder)
        self.things = json.loads((folder / small_suite.NAME / "0" / "task.json").read_text())["things"]
        self.model = mujoco.MjModel.from_xml_string(small_suite.scene().decode())
        self.data = mujoco.MjData(self.model)

    def set(self, joint: str, *values: float) -> None:
        at = int(self.model.joint(joint).qposadr[0])
        self.data.qpos[at : at + len(values)] = values
        mujoco.mj_forward(self.model, self.data)

    def holds(self, *literals: list[str]) -> bool:
        return Goal(self.model, literals, self.things).holds(self.data)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    ("predicate", "joint", "value", "expected"),
    [
        (["open", "drawer_region"], "drawer_slide", 0.11, True),
        (["open", "drawer_region"], "drawer_slide", 0.09, False),
        (["close", "drawer_region"], "drawer_slide", 0.0005, True),
        (["close", "drawer_region"], "drawer_slide", 0.05, False),
        (["turnon", "knob"], "knob_turn", 0.5, True),
        (["turnon", "knob"], "knob_turn", 0.4999, False),
        (["turnoff", "knob"], "knob_turn", 0.0, False),  # LIBERO asks for less than nothing
        (["turnoff", "knob"], "knob_turn", -0.001, True),
    ],
)
def test_joints(world: World, predicate: list[str], joint: str, value: float, expected: bool) -> None:
    world.set(joint, value)
    assert world.holds(predicate) == expected


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ((0.5, 0.3, 0.1), True),
        ((0.5, 0.3, 0.041), True),  # a centimetre below the box counts
        ((0.5, 0.3, 0.039), False),
        ((0.5, 0.3, 0.151), False),
        ((0.601, 0.3, 0.1), False),
    ],
)
def test_in_a_region(world: World, position: tuple[float, float, float], expected: bool) -> None:
    world.set("box_joint", *position)
    assert world.holds(["in", "box", "drawer_region"]) == expected


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ((0.4, 0.0, 0.0799), True),
        ((0.4, 0.0, 0.0801), False),  # it does not touch
        ((0.4, 0.109, 0.0799), False),  # it touches, and its centre is beside the board
    ],
)
def test_on_a_region_of_a_thing(world: World, position: tuple[float, float, float], expected: bool) -> None:
    world.set("box_joint", *position)
    assert world.holds(["on", "box", "shelf_region"]) == expected


@pytest.mark.parametrize(("x", "expected"), [(0.4, True), (0.42, True), (0.44, False)])
def test_on_a_thing_the_centres_are_near(world: World, x: float, expected: bool) -> None:
    world.set("box_joint", x, 0.0, 0.0799)
    assert world.holds(["on", "box", "shelf"]) == expected


def test_all_predicates_of_a_goal(world: World) -> None:
    world.set("box_joint", 0.4, 0.0, 0.0799)
    assert world.holds(["on", "box", "shelf"]) and not world.holds(["on", "box", "shelf"], ["open", "drawer_region"])


def test_an_unknown_predicate_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match=r"\(up box\)"):
        world.holds(["up", "box"])
