"""turning_on_radio: press the push button of a radio that stands on the table."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element

import mujoco
import numpy as np

from rlrun.envs import r1pro
from rlrun.envs.embedded import room
from rlrun.envs.embedded.activity import Activity
from rlrun.envs.embedded.controllers import Controllers
from rlrun.envs.embedded.expert import Expert, RightArmExpert
from rlrun.envs.embedded.goals import Predicate
from rlrun.envs.embedded.kinematics import ArmKinematics
from rlrun.envs.embedded.world_state import Row
from rlrun.envs.instructions import INSTRUCTIONS

TABLE_HEIGHT = 0.72
RADIO_AT = (0.90, -0.16)  # centre of the range of positions
RADIO_SPREAD = 0.08  # m to each side
YAW_SPREAD = 0.4  # rad to each side

TRUNK = (1.2, -1.75, -1.1, -0.25)  # leans over the table: head and hand see the radio from above
ARM = (-0.75, -0.85, 0.0, -2.0, -0.15, 0.5, 0.5)  # hand beside the radio, higher than its top


class TurningOnRadio(Activity):
    """The radio's button must be pushed within about 2 cm: the finger is 2.4 cm wide, the button 2.4 cm."""

    name = "turning_on_radio"
    instruction = INSTRUCTIONS[name]
    start_pose: Mapping[str, float] = {
        **dict(zip(r1pro.joints_of("trunk"), TRUNK, strict=True)),
        **dict(zip(r1pro.joints_of("arm_right"), ARM, strict=True)),
        **dict.fromkeys(r1pro.joints_of("gripper_right"), 0.0),
    }
    bddl_objects: Mapping[str, str] = {
        "radio_receiver.n.01_1": "radio",
        "table.n.02_1": "table",
        "floor.n.01_1": "world",
        "agent.n.01_1": "base_link",
    }
    graspable = ()
    overview = ((0.5, -0.1, 0.8), 2.0, 150.0, -25.0)

    def write_scene(self, root: Element) -> None:
        room.add_table(root, 0.96, -0.1, (0.34, 0.55), TABLE_HEIGHT)
        room.add_sofa(root, 2.6, 0.6)
        room.add_trash_can(root, 0.75, -0.95)
        room.add_radio(root)

    def bind(self, model: mujoco.MjModel) -> None:
        self._mocap = model.body("radio").mocapid[0]
        self._button_qpos = model.joint("radio_button").qposadr[0]
        self._button_body = model.body("radio_button").id
        self.bind_arm(model)

    def predicates(self) -> Mapping[str, Predicate]:
        return {"toggled_on": lambda row, name: name in row.toggled_on}

    def place(self, row: Row, random: np.random.Generator, spread: float) -> None:
        x, y = np.array(RADIO_AT) + random.uniform(-1, 1, 2) * RADIO_SPREAD * spread
        yaw = random.uniform(-1, 1) * YAW_SPREAD * spread
        row.data.mocap_pos[self._mocap] = (x, y, TABLE_HEIGHT + room.RADIO_HALF[2])
        row.data.mocap_quat[self._mocap] = (np.cos(yaw / 2), 0, 0, np.sin(yaw / 2))
        self.disturb_arm(row, random, spread)

    def observe(self, row: Row) -> None:
        if row.data.qpos[self._button_qpos] >= room.BUTTON_ON:
            row.toggled_on.add("radio")

    def button(self, row: Row) -> np.ndarray:
        """Return the float64 [3] world position of the top of the released button."""
        released = row.data.xpos[self._button_body] + (0, 0, row.data.qpos[self._button_qpos])
        return released + (0, 0, room.BUTTON_TRAVEL + 0.003)

    def shaping(self, row: Row) -> float:
        if "radio" in row.toggled_on:
            return 1.0
        distance = np.linalg.norm(self.fingertip(row) - self.button(row))
        return float(0.8 * (1.0 - np.tanh(4.0 * distance)))

    def expert(self, model: mujoco.MjModel, controllers: Controllers) -> Expert:
        return PressExpert(self, self.driven_arm, controllers)


class PressExpert(RightArmExpert):
    """Moves above the button with closed fingers pointing down, then pushes; lifts again when off to the side."""

    HOVER = 0.05  # m above the button
    PUSH = 0.02  # m below its top, so that the servo keeps pressing
    ALIGNED = 0.014  # m off the axis; within it the push may begin
    MAX_LEAD = 0.12
    POINTING = np.array([0.7, 0.0, -0.714])
    POSTURE = np.array([-0.4, -0.15, 0.15, -1.85, 0.0, 0.85, 0.05])

    def __init__(self, activity: TurningOnRadio, kinematics: ArmKinematics, controllers: Controllers):
        super().__init__(kinematics, controllers, activity.start_pose)
        self.activity = activity

    def action(self, row: Row) -> np.ndarray:
        return self.reach(row, self._waypoint(self.activity.button(row), self.tip(row)), gripper=-1.0)

    def _waypoint(self, button: np.ndarray, tip: np.ndarray) -> np.ndarray:
        """Return the next target of the fingertip, given its position."""
        off, height = np.linalg.norm((tip - button)[:2]), tip[2] - button[2]
        if off < self.ALIGNED + 0.3 * max(height, 0.0):
            return button - (0, 0, self.PUSH)
        if height < 0.5 * self.HOVER and off < 0.25:  # beside or on the radio: go up first, or the hand drags along it
            back = tip + 0.3 * (button - tip)
            return np.array([back[0], back[1], button[2] + 1.5 * self.HOVER])
        return button + (0, 0, self.HOVER)
