"""Activities of the embedded world: objects, goals and the expert's plan of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from xml.etree.ElementTree import Element

import mujoco
import numpy as np

from rlrun.envs import r1pro
from rlrun.envs.embedded import room
from rlrun.envs.embedded.controllers import ArmKinematics, Controllers, Expert, RightArmExpert
from rlrun.envs.embedded.goals import Predicate, Row
from rlrun.envs.r1pro import INSTRUCTIONS

ARM_SPREAD = 0.08  # rad to each side, of every arm joint
TABLE_HEIGHT = 0.72
CANS = ("can_1", "can_2", "can_3")
TABLE_PLACES = ((0.80, -0.25), (0.92, -0.10), (0.80, 0.04))  # centres of the ranges of positions
FLOOR_PLACES = ((1.6, -0.7), (1.7, 0.0), (1.6, 0.7))
CAN_SPREAD = 0.03  # m to each side
BIN_AT = (0.66, -0.60)
TRUNK = (1.2, -1.75, -1.1, -0.35)  # leans over the table and looks towards the cans and the bin
ARM = (-0.6, -0.75, -0.1, -2.0, -0.15, 0.5, 0.5)
RADIO_AT = (0.90, -0.16)  # centre of the range of positions
RADIO_SPREAD = 0.08  # m to each side
YAW_SPREAD = 0.4  # rad to each side
RADIO_TRUNK = (1.2, -1.75, -1.1, -0.25)  # leans over the table: head and hand see the radio from above
RADIO_ARM = (-0.75, -0.85, 0.0, -2.0, -0.15, 0.5, 0.5)  # hand beside the radio, higher than its top


class Activity(ABC):
    """One BEHAVIOR activity in the embedded room. Objects are named by their MuJoCo bodies."""

    name: str  # name of the bddl activity
    instruction: str
    start_pose: Mapping[str, float]  # joint name -> position, where it differs from R1Pro's reset pose
    bddl_objects: Mapping[str, str]  # BDDL term -> body
    graspable: tuple[str, ...]  # bodies that assisted grasping may hold
    overview: tuple[tuple[float, float, float], float, float, float]  # look-at point, distance, azimuth, elevation

    kinematics: ArmKinematics | None  # of the right arm; None if it is not driven

    @abstractmethod
    def write_scene(self, root: Element) -> None:
        """Add furniture and objects to the MJCF document."""

    @abstractmethod
    def bind(self, model: mujoco.MjModel) -> None:
        """Look up the ids of the objects in the compiled model."""

    @abstractmethod
    def predicates(self) -> Mapping[str, Predicate]:
        """Return the BDDL predicates, which take a row and body names."""

    @abstractmethod
    def place(self, row: Row, random: np.random.Generator, spread: float) -> None:
        """Put objects at the start of this episode; `spread` 0..1 scales the variation."""

    def observe(self, row: Row) -> None:
        """Record lasting effects of this control step; called after every control step."""
        return

    @abstractmethod
    def shaping(self, row: Row) -> float:
        """Return the progress in 0..1, a function of the state alone; 1 if the goal holds."""

    @abstractmethod
    def expert(self, model: mujoco.MjModel, controllers: Controllers) -> Expert:
        """Return the scripted expert. Raises NotImplementedError if the driven parts cannot solve the activity."""

    def bind_arm(self, model: mujoco.MjModel) -> None:
        """Look up the right arm and its fingertip; experts use only this arm."""
        self._fingertip = model.site("right_eef_link").id
        is_driven = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, "right_arm_joint1") >= 0
        self.kinematics = ArmKinematics(model, "right") if is_driven else None

    @property
    def driven_arm(self) -> ArmKinematics:
        """Return the right arm, which an expert moves. Raises NotImplementedError if it is not driven."""
        if self.kinematics is None:
            raise NotImplementedError("the expert needs arm_right in env.embedded.controlled")
        return self.kinematics

    def fingertip(self, row: Row) -> np.ndarray:
        """Return float64 [3]: the point between the right fingertips."""
        return row.data.site_xpos[self._fingertip]

    def disturb_arm(self, row: Row, random: np.random.Generator, spread: float) -> None:
        """Vary the start pose of the right arm, if it is driven."""
        offset = random.uniform(-1, 1, 7) * ARM_SPREAD * spread
        if self.kinematics is not None:
            row.data.qpos[self.kinematics.qpos] += offset


class PickingUpTrash(Activity):
    """Cans start on the table, or on the floor (`on_floor`), which needs base and trunk and has no expert yet."""

    name = "picking_up_trash"
    instruction = INSTRUCTIONS[name]
    start_pose: Mapping[str, float] = {
        **dict(zip(r1pro.joints_of("trunk"), TRUNK, strict=True)),
        **dict(zip(r1pro.joints_of("arm_right"), ARM, strict=True)),
    }
    bddl_objects: Mapping[str, str] = {
        "ashcan.n.01_1": "trash_can",
        "can__of__soda.n.01_1": "can_1",
        "can__of__soda.n.01_2": "can_2",
        "can__of__soda.n.01_3": "can_3",
        "floor.n.01_1": "world",
        "floor.n.01_2": "world",
        "agent.n.01_1": "base_link",
    }
    graspable = CANS
    overview = ((0.7, -0.2, 0.7), 2.0, 150.0, -30.0)

    def __init__(self, on_floor: bool):
        self.on_floor = on_floor

    def write_scene(self, root: Element) -> None:
        room.add_table(root, 0.96, 0.10, (0.34, 0.48), TABLE_HEIGHT)
        room.add_sofa(root, 2.6, 0.6)
        room.add_trash_can(root, *BIN_AT)
        for name in CANS:
            room.add_can(root, name)

    def bind(self, model: mujoco.MjModel) -> None:
        self._bodies = {name: model.body(name).id for name in CANS}
        self._qpos = {name: model.joint(name).qposadr[0] for name in CANS}
        self._bin = model.body("trash_can").id
        self.bind_arm(model)

    def predicates(self) -> Mapping[str, Predicate]:
        return {"inside": self.is_inside}

    def is_inside(self, row: Row, item: str, container: str) -> bool:
        """Return whether the centre of a can is between the walls of the trash can."""
        offset = self.position(row, item) - row.data.xpos[self._bin]
        return bool(np.abs(offset[:2]).max() < room.BIN_HALF_WIDTH and 0 <= offset[2] < room.BIN_HEIGHT)

    def position(self, row: Row, can: str) -> np.ndarray:
        """Return float64 [3]: the centre of a can."""
        return row.data.xpos[self._bodies[can]]

    def place(self, row: Row, random: np.random.Generator, spread: float) -> None:
        height = (0.0 if self.on_floor else TABLE_HEIGHT) + room.CAN_HALF_HEIGHT
        for can, centre in zip(CANS, FLOOR_PLACES if self.on_floor else TABLE_PLACES, strict=True):
            x, y = np.array(centre) + random.uniform(-1, 1, 2) * CAN_SPREAD * spread
            yaw = random.uniform(-np.pi, np.pi) * spread
            start = self._qpos[can]
            row.data.qpos[start : start + 7] = (x, y, height, np.cos(yaw / 2), 0, 0, np.sin(yaw / 2))
        self.disturb_arm(row, random, spread)

    def shaping(self, row: Row) -> float:
        """Return the cans in the bin, plus the progress of the best other can: reached, held, carried."""
        outside = [can for can in CANS if not self.is_inside(row, can, "trash_can")]
        best = max((self._stage(row, can) for can in outside), default=0.0)
        return (len(CANS) - len(outside) + best) / len(CANS)

    def _stage(self, row: Row, can: str) -> float:
        """Return 0..0.9: up to 0.4 for a hand near the can, 0.5 when held, up to 0.9 when held over the bin."""
        position = self.position(row, can)
        if can in row.held.values():
            away = np.linalg.norm((position - row.data.xpos[self._bin])[:2])
            return float(0.5 + 0.4 * (1 - np.tanh(3.0 * away)))
        return float(0.4 * (1 - np.tanh(4.0 * np.linalg.norm(self.fingertip(row) - position))))

    def expert(self, model: mujoco.MjModel, controllers: Controllers) -> Expert:
        if self.on_floor:
            raise NotImplementedError(
                "the expert picks cans from the table only: env.embedded.cans_on_floor=false, or demos.path"
            )
        return TrashExpert(self, self.driven_arm, controllers)


class TrashExpert(RightArmExpert):
    """Grasps the nearest can from above, lifts it, carries it over the bin and releases it."""

    POINTING = np.array([0.78, 0.0, -0.62])
    POSTURE = np.array([-0.6, -0.3, 0.1, -1.8, 0.0, 0.7, 0.1])
    MAX_LEAD = 0.17
    GRASP_AT = np.array([0.025, 0.0, 0.02])  # target of the fingertips, from the centre of the can
    CLEAR = 0.13  # m above the grasp point, high enough for the fingertips to pass over cans
    ALIGNED = 0.012  # m off the vertical through the grasp point; within it the hand comes down
    NEAR = 0.03  # m from the grasp point; within it the fingers close
    OVER_BIN = np.array([*BIN_AT, TABLE_HEIGHT + 0.20])  # target of the fingertips while they carry a can
    DROP_WITHIN = 0.05  # m off the bin's axis; within it the hand releases the can

    def __init__(self, activity: PickingUpTrash, kinematics: ArmKinematics, controllers: Controllers):
        super().__init__(kinematics, controllers, activity.start_pose)
        self.activity = activity

    def action(self, row: Row) -> np.ndarray:
        if "right" in row.held:
            return self._carry(row)
        tip = self.tip(row)
        cans = [self.activity.position(row, name) for name in CANS]
        waiting = [can for can in cans if self._is_on_table(can)]
        if not waiting or any(self._is_falling(can) for can in cans):  # moving away now would drag the can along
            return self.reach(row, self.OVER_BIN, 1.0)
        return self._take(row, tip, min(waiting, key=lambda can: np.linalg.norm((can - tip)[:2])))

    def _is_on_table(self, can: np.ndarray) -> bool:
        return can[2] > TABLE_HEIGHT and np.abs(can[:2] - BIN_AT).max() > room.BIN_HALF_WIDTH

    def _is_falling(self, can: np.ndarray) -> bool:
        return can[2] > room.BIN_HEIGHT + 0.1 and np.abs(can[:2] - BIN_AT).max() <= room.BIN_HALF_WIDTH

    def _take(self, row: Row, tip: np.ndarray, can: np.ndarray) -> np.ndarray:
        """Lower the open fingers over the can, then close them."""
        goal = can + self.GRASP_AT
        off = np.linalg.norm((tip - goal)[:2])
        height = tip[2] - goal[2]
        if np.linalg.norm(tip - goal) < self.NEAR:
            return self.reach(row, goal, -1.0)
        if off < self.ALIGNED + 0.2 * max(height, 0.0):
            return self.reach(row, goal, 1.0)
        if height < self.CLEAR - 0.04 and off < 0.25:  # a low hand would push the can over
            return self.reach(row, np.array([*tip[:2], goal[2] + self.CLEAR]), 1.0)
        return self.reach(row, goal + (0, 0, self.CLEAR), 1.0)

    def _carry(self, row: Row) -> np.ndarray:
        """Lift the can, move it over the bin and release it."""
        tip = self.tip(row)
        can = self.activity.position(row, row.held["right"])
        if np.linalg.norm(can[:2] - self.OVER_BIN[:2]) < self.DROP_WITHIN:
            return self.reach(row, self.OVER_BIN, 1.0)
        if tip[2] < self.OVER_BIN[2] - 0.06 and np.linalg.norm((tip - self.OVER_BIN)[:2]) > 0.2:
            return self.reach(row, np.array([tip[0], tip[1] - 0.02, self.OVER_BIN[2]]), -1.0)
        return self.reach(row, self.OVER_BIN, -1.0)


class TurningOnRadio(Activity):
    """The radio's button must be pushed within about 2 cm: the finger is 2.4 cm wide, the button 2.4 cm."""

    name = "turning_on_radio"
    instruction = INSTRUCTIONS[name]
    start_pose: Mapping[str, float] = {
        **dict(zip(r1pro.joints_of("trunk"), RADIO_TRUNK, strict=True)),
        **dict(zip(r1pro.joints_of("arm_right"), RADIO_ARM, strict=True)),
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
        off = np.linalg.norm((tip - button)[:2])
        height = tip[2] - button[2]
        if off < self.ALIGNED + 0.3 * max(height, 0.0):
            return button - (0, 0, self.PUSH)
        if height < 0.5 * self.HOVER and off < 0.25:  # beside or on the radio: go up first, or the hand drags along it
            back = tip + 0.3 * (button - tip)
            return np.array([back[0], back[1], button[2] + 1.5 * self.HOVER])
        return button + (0, 0, self.HOVER)
