"""MJCF of the room: floor, walls, sofa, table, trash can, soda cans and a radio with a button."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

from rlrun.envs.embedded.robot import add_geom, numbers, part_of

FIXTURE_BITS = {"contype": "0", "conaffinity": "3"}  # touched by the robot (bit 1) and by movables (bit 2)
MOVABLE_BITS = {"contype": "2", "conaffinity": "3"}

WOOD = ".55 .40 .26 1"
WALL = ".80 .78 .72 1"
FLOOR = ".42 .44 .46 1"
CLOTH = ".30 .38 .34 1"

CAN_RADIUS = 0.033
CAN_HALF_HEIGHT = 0.061
CAN_MASS = 0.05
BIN_HALF_WIDTH = 0.16
BIN_HEIGHT = 0.45

RADIO_HALF = (0.07, 0.12, 0.06)  # m
BUTTON_AT = (-0.02, -0.05)  # on the radio's top, off its centre so that yaw matters
BUTTON_RADIUS = 0.012
BUTTON_TRAVEL = 0.012
BUTTON_ON = 0.008  # travel at which the switch clicks


def document(physics_hz: int) -> Element:
    """Return an MJCF root with options set for speed, an empty world, and a lit room of 8 x 8 m."""
    root = Element("mujoco", model="rlrun room")
    SubElement(root, "compiler", angle="radian", autolimits="true")
    option = {"timestep": numbers(1.0 / physics_hz), "integrator": "implicitfast", "cone": "pyramidal"}
    SubElement(root, "option", option, iterations="20", ls_iterations="10")
    SubElement(root, "statistic", extent="1")  # so that the clipping planes below are in metres
    visual = SubElement(root, "visual")
    # shadows and multisampling increase the frame time up to 40 times
    SubElement(visual, "quality", shadowsize="0", offsamples="0", numslices="12", numstacks="6", numquads="1")
    SubElement(visual, "global", offwidth="640", offheight="640")
    SubElement(visual, "map", znear="0.01", zfar="30")
    SubElement(visual, "headlight", ambient=".45 .45 .45", diffuse=".45 .45 .45", specular="0 0 0")
    world = SubElement(root, "worldbody")
    for section in ("equality", "actuator"):
        SubElement(root, section)
    SubElement(world, "light", pos="0 0 3", dir="0 0 -1", directional="true", diffuse=".3 .3 .3", castshadow="false")
    add_geom(world, "plane", (4, 4, 1), FLOOR, name="floor", **FIXTURE_BITS)
    walls = {"front": (4, 0), "back": (-4, 0), "left": (0, 4), "right": (0, -4)}
    for name, (x, y) in walls.items():
        half = (0.05, 4, 1.4) if x else (4, 0.05, 1.4)
        add_geom(world, "box", half, WALL, (x, y, 1.4), name=f"wall_{name}")
    return root


def add_sofa(root: Element, x: float, y: float) -> None:
    sofa = SubElement(part_of(root, "worldbody"), "body", name="sofa", pos=numbers([x, y, 0]))
    add_geom(sofa, "box", (0.4, 0.9, 0.21), CLOTH, (0, 0, 0.21), **FIXTURE_BITS)
    add_geom(sofa, "box", (0.12, 0.9, 0.2), CLOTH, (0.3, 0, 0.6), **FIXTURE_BITS)


def add_table(root: Element, x: float, y: float, half: tuple[float, float], height: float) -> None:
    """Add a table whose top is at `height`; `half` are half sizes in x and y."""
    table = SubElement(part_of(root, "worldbody"), "body", name="table", pos=numbers([x, y, 0]))
    add_geom(table, "box", (*half, 0.02), WOOD, (0, 0, height - 0.02), name="table_top", **FIXTURE_BITS)
    for sx in (-1, 1):
        add_geom(
            table, "box", (0.03, half[1] - 0.02, height / 2 - 0.02), WOOD, (sx * (half[0] - 0.04), 0, height / 2 - 0.02)
        )


def add_trash_can(root: Element, x: float, y: float) -> None:
    """Add an open box on the floor; its inside extends BIN_HALF_WIDTH to each side of (x, y)."""
    half = BIN_HALF_WIDTH
    wall = 0.008
    rgba = ".12 .45 .20 1"
    bin_ = SubElement(part_of(root, "worldbody"), "body", name="trash_can", pos=numbers([x, y, 0]))
    add_geom(bin_, "box", (half, half, wall), ".05 .08 .06 1", (0, 0, wall), **FIXTURE_BITS)
    for sx, sy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        size = (wall if sx else half, wall if sy else half, BIN_HEIGHT / 2)
        add_geom(bin_, "box", size, rgba, (sx * half, sy * half, BIN_HEIGHT / 2), **FIXTURE_BITS)


def add_can(root: Element, name: str) -> None:
    """Add a free soda can; it collides as a box inside the cylinder, which rests and can be gripped stably."""
    can = SubElement(part_of(root, "worldbody"), "body", name=name, pos="0 0 10")
    SubElement(can, "freejoint", name=name)
    add_geom(can, "cylinder", (CAN_RADIUS, CAN_HALF_HEIGHT), ".85 .08 .10 1", mass="0")
    side = CAN_RADIUS * 0.85
    friction = {"friction": "1 .01 .001", "mass": numbers(CAN_MASS)}
    box = (side, side, CAN_HALF_HEIGHT)
    add_geom(can, "box", box, "0 0 0 0", name=name, group="4", **friction, **MOVABLE_BITS)


def add_radio(root: Element) -> None:
    """Add a fixed radio, placed at reset through its mocap pose, with a sprung push button on top."""
    world = part_of(root, "worldbody")
    radio = SubElement(world, "body", name="radio", mocap="true", pos="0 0 5")
    top = RADIO_HALF[2]
    add_geom(radio, "box", RADIO_HALF, ".80 .10 .12 1", name="radio_case", **FIXTURE_BITS)
    ring = (*BUTTON_AT, top + 0.0015)
    add_geom(radio, "cylinder", (0.035, 0.0015), ".98 .90 .10 1", ring)
    # the speaker marks the other end of the top
    add_geom(radio, "box", (0.045, 0.035, 0.001), ".08 .08 .10 1", (0, 0.065, top + 0.001))
    button = SubElement(radio, "body", name="radio_button", pos=numbers([*BUTTON_AT, top]))
    SubElement(
        button,
        "joint",
        name="radio_button",
        type="slide",
        axis="0 0 -1",
        range=numbers([0, BUTTON_TRAVEL]),
        stiffness="400",
        damping="8",
        armature=".02",
    )
    size = (BUTTON_RADIUS, BUTTON_TRAVEL / 2 + 0.001)
    add_geom(
        button,
        "cylinder",
        size,
        ".05 .85 .95 1",
        (0, 0, size[1] + 0.001),
        name="radio_button",
        mass=".01",
        **FIXTURE_BITS,
    )
