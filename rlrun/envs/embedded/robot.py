"""Robot of the embedded world: its MuJoCo model, grasping, and proprioception."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element, SubElement

import mujoco
import numpy as np

from rlrun.envs import r1pro
from rlrun.envs.embedded.controllers import Controllers
from rlrun.envs.embedded.goals import Row
from rlrun.envs.r1pro_keys import ProprioLayout

# Collision bits: the robot touches fixtures and movables, never itself.
ROBOT_BITS = {"contype": "1", "conaffinity": "0"}
VISUAL_BITS = {"contype": "0", "conaffinity": "0"}

SHELL = ".86 .87 .90 1"
JOINTS = ".25 .27 .32 1"
PALM = ".60 .15 .85 1"
TIPS = ".10 .45 1 1"
ARMATURE = 0.05  # kg m2, rotor inertia of arm joints; keeps light wrists stable at large steps
BASE_GAIN = (4000.0, 4000.0, 800.0)  # N s/m, N s/m, Nm s/rad
FINGER_FORCE = 20.0  # N


def numbers(values) -> str:
    """Return the MJCF attribute text of one number or a sequence."""
    return " ".join(f"{v:.6g}" for v in np.atleast_1d(values))


def part_of(root: Element, name: str) -> Element:
    """Return a section of an MJCF document, such as "worldbody". Raises KeyError if there is none."""
    section = root.find(name)
    if section is None:
        raise KeyError(name)
    return section


def add_geom(body: Element, shape: str, size, rgba: str, pos=(0, 0, 0), **attributes: str) -> Element:
    """Add a primitive geom, visual only unless bits are given; `attributes` are further MJCF attributes."""
    return SubElement(
        body,
        "geom",
        {"type": shape, "size": numbers(size), "rgba": rgba, "pos": numbers(pos), **VISUAL_BITS, **attributes},
    )


def _capsule(body: Element, start, end, radius: float, rgba: str, mass: float, **attributes: str) -> None:
    ends = numbers([*start, *end])
    SubElement(
        body,
        "geom",
        {"type": "capsule", "fromto": ends, "size": numbers(radius), "rgba": rgba, "mass": numbers(mass), **VISUAL_BITS}
        | attributes,
    )


def _axis_angle(axis, angle: float) -> str:
    return numbers([np.cos(angle / 2), *(np.sin(angle / 2) * np.asarray(axis, float))])


class RobotModel:
    """Writes the robot into an MJCF document.

    pose: joint name -> start position; joints of `driven` parts become joints with servos, all
    others are baked into the bodies, which costs no simulation time.
    """

    def __init__(self, root: Element, pose: Mapping[str, float], driven: tuple[str, ...]):
        self.pose = {**r1pro.RESET_POSE, **pose}
        self.driven = driven
        self.worldbody = part_of(root, "worldbody")
        self.actuator = part_of(root, "actuator")

    def write(self, base_xy: tuple[float, float] = (0.0, 0.0), yaw: float = 0.0) -> None:
        """Append bodies and actuators; the base stands at `base_xy`."""
        base = SubElement(self.worldbody, "body", name="base_link", pos=numbers([*base_xy, 0]), gravcomp="1")
        base.set("quat", _axis_angle((0, 0, 1), yaw))
        if "base" in self.driven:
            self._planar_joints(base)
        add_geom(base, "cylinder", (0.27, 0.10), JOINTS, (-0.08, 0, 0.14), mass="150", **ROBOT_BITS)
        column = (-0.079, 0, 0.3427)
        _capsule(base, (-0.079, 0, 0.2), column, 0.09, SHELL, 10)
        body = base
        lengths = ((0, 0, 0.40), (0, 0, 0.30), (0, 0, 0.0996), (0, 0, 0.30))
        for joint, end in zip(r1pro.PART_JOINTS["trunk"], lengths, strict=True):
            body = self._link(body, joint, "trunk", joint.name.replace("joint", "link"))
            _capsule(body, (0, 0, 0), end, 0.075, SHELL, joint.mass)
        self._head(body)
        for side in r1pro.SIDES:
            self._arm(body, side)

    def _planar_joints(self, base: Element) -> None:
        # no force limit: a saturated velocity servo is no longer damped implicitly and rings
        rows = zip(r1pro.PLANAR_JOINTS, ("slide", "slide", "hinge"), np.eye(3), BASE_GAIN, strict=True)
        for name, kind, axis, gain in rows:
            SubElement(base, "joint", name=name, type=kind, axis=numbers(axis))
            SubElement(self.actuator, "velocity", name=name, joint=name, kv=numbers(gain))

    def _link(self, parent: Element, joint: r1pro.Joint, part: str, name: str) -> Element:
        body = SubElement(parent, "body", name=name, pos=numbers(joint.origin), gravcomp="1")
        if part not in self.driven:
            body.set("quat", _axis_angle(joint.axis, self.pose[joint.name]))
            return body
        SubElement(
            body,
            "joint",
            name=joint.name,
            axis=numbers(joint.axis),
            range=numbers(joint.range),
            armature=numbers(ARMATURE),
            damping="1",
        )
        SubElement(
            self.actuator,
            "position",
            name=joint.name,
            joint=joint.name,
            kp=numbers(joint.stiffness),
            dampratio="1",
            ctrlrange=numbers(joint.range),
            forcerange=numbers([-joint.effort, joint.effort]),
        )
        return body

    def _head(self, chest: Element) -> None:
        add_geom(chest, "box", (0.07, 0.13, 0.12), SHELL, (-0.01, 0, 0.26), mass="3")
        add_geom(chest, "box", (0.05, 0.09, 0.05), JOINTS, (0.0, 0, 0.476), mass="1")
        # 720 x 720 with f = 306 px; optical axis forward and 20 degrees down
        camera = {"pos": ".0655 .06 .476", "xyaxes": "0 -1 0 .34202 0 .93969", "fovy": "99.3"}
        SubElement(chest, "camera", camera, name="zed_link")

    def _arm(self, chest: Element, side: str) -> None:
        part = f"arm_{side}"
        sign = 1.0 if side == "left" else -1.0
        body = SubElement(chest, "body", name=f"{side}_arm_base", pos=numbers(r1pro.SHOULDER[side]), gravcomp="1")
        _capsule(body, (0, 0, 0), (0, sign * 0.0735, 0), 0.05, JOINTS, 1.48)
        joints = r1pro.PART_JOINTS[part]
        ends = [joint.origin for joint in joints[1:]] + [r1pro.GRIPPER_ORIGIN]
        radii = (0.052, 0.050, 0.046, 0.044, 0.040, 0.034, 0.032)
        for i, (joint, end, radius) in enumerate(zip(joints, ends, radii, strict=True)):
            body = self._link(body, joint, part, joint.name.replace("joint", "link"))
            bits = ROBOT_BITS if i in (3, 4) and part in self.driven else {}
            _capsule(body, (0, 0, 0), end, radius, SHELL if i % 2 else JOINTS, joint.mass, **bits)
        self._gripper(body, side)

    def _gripper(self, wrist: Element, side: str) -> None:
        """Add palm, two tapered fingers, tip site and wrist camera."""
        part = f"gripper_{side}"
        bits = ROBOT_BITS if part in self.driven or f"arm_{side}" in self.driven else {}
        palm = SubElement(wrist, "body", name=f"{side}_gripper_link", pos=numbers(r1pro.GRIPPER_ORIGIN), gravcomp="1")
        add_geom(palm, "box", (0.014, 0.045, 0.015), PALM, (-0.010, 0, -0.02), mass=".246", **bits)
        SubElement(palm, "site", name=f"{side}_eef_link", pos=numbers(r1pro.FINGERTIP), size=".004", rgba="0 0 0 0")
        # 480 x 480 with f = 388.66 px, looking along the fingers
        camera = {"pos": ".0505 .0029 .0051", "xyaxes": "0 -1 0 .90631 0 -.42262", "fovy": "63.4"}
        SubElement(palm, "camera", camera, name=f"{side}_realsense_link")
        for i, mirror in ((1, 1.0), (2, -1.0)):
            self._finger(palm, f"{side}_gripper_finger_joint{i}", mirror, part, bits)

    def _finger(self, palm: Element, name: str, mirror: float, part: str, bits: dict[str, str]) -> None:
        """Add a finger whose inner face closes on y = 0 of the palm; the tip ends at r1pro.FINGERTIP."""
        x, y, z = r1pro.FINGER_ORIGIN
        travel = 0.0 if part in self.driven else self.pose[name]
        finger = SubElement(palm, "body", name=name.replace("joint", "link"), gravcomp="1")
        finger.set("pos", numbers([x, mirror * (y + travel), z]))
        length = -r1pro.FINGERTIP[2] + z
        pad = (0, mirror * (0.006 - y), -length / 2)
        add_geom(
            finger, "box", (0.010, 0.006, length / 2), TIPS, pad, name=f"{finger.get('name')}_pad", mass=".03", **bits
        )
        if part not in self.driven:
            return
        slide = {"type": "slide", "axis": numbers([0, mirror, 0]), "range": numbers([0, r1pro.FINGER_OPEN])}
        SubElement(finger, "joint", slide, name=name, armature=".05", damping="2")
        servo = {"kp": "400", "dampratio": "1", "ctrlrange": numbers([0, r1pro.FINGER_OPEN])}
        force = numbers([-FINGER_FORCE, FINGER_FORCE])
        SubElement(self.actuator, "position", servo, name=name, joint=name, forcerange=force)


def write_welds(root: Element, graspable: tuple[str, ...], driven: tuple[str, ...]) -> None:
    """Write an inactive weld for every driven gripper and graspable body; grasping ignores other bodies."""
    for side in _sides(driven):
        for body in graspable:
            pair = {"body1": f"{side}_gripper_link", "body2": body}
            SubElement(part_of(root, "equality"), "weld", pair, name=f"grasp_{side}_{body}", active="false")


def _sides(driven: tuple[str, ...]) -> list[str]:
    return [part.removeprefix("gripper_") for part in driven if part.startswith("gripper_")]


class AssistedGrasping:
    """Welds and releases by the gripper command: below 0 closes, above 0 opens.

    A weld's anchor is stored in the shared model, so each row keeps its own and copies it there for its steps.
    """

    def __init__(self, model: mujoco.MjModel, graspable: tuple[str, ...], controllers: Controllers):
        self._model = model
        self._body_of_geom = np.asarray(model.geom_bodyid)
        self._bodies = {model.body(name).id: name for name in graspable}
        self._hands = [(side, controllers.where(f"gripper_{side}").start) for side in _sides(controllers.driven)]
        self._fingers = {
            side: tuple(model.body(f"{side}_gripper_finger_link{i}").id for i in (1, 2)) for side, _ in self._hands
        }
        self._palm = {side: model.body(f"{side}_gripper_link").id for side, _ in self._hands}

    def lend_anchors(self, row: Row) -> None:
        """Put this row's anchors into the shared model; called before every physics step."""
        for weld, anchor in row.grasp_anchors.items():
            self._model.eq_data[weld, : len(anchor)] = anchor

    def update(self, row: Row, action: np.ndarray) -> None:
        """Release or grasp after a control step with `action` [A]."""
        if not self._bodies:
            return
        for side, index in self._hands:
            if side in row.held:
                if action[index] > 0:
                    weld = self._weld(side, row.held.pop(side))
                    row.data.eq_active[weld] = 0
                    del row.grasp_anchors[weld]
            elif action[index] < 0:
                self._try_grasp(row, side)

    def _weld(self, side: str, body: str) -> int:
        return self._model.equality(f"grasp_{side}_{body}").id

    def _try_grasp(self, row: Row, side: str) -> None:
        touching = [self._touched(row, finger) for finger in self._fingers[side]]
        both = sorted((touching[0] & touching[1]) - {self._model.body(name).id for name in row.held.values()})
        if both:
            body = both[0]
            name = self._bodies[both[0]]
            weld = self._weld(side, name)
            row.held[side] = name
            row.grasp_anchors[weld] = self._anchor(row.data, self._palm[side], body)
            row.data.eq_active[weld] = 1

    def _touched(self, row: Row, finger: int) -> set[int]:
        """Return the graspable bodies in contact with a finger."""
        pairs = self._body_of_geom[row.data.contact.geom]
        others = np.concatenate([pairs[pairs[:, 0] == finger, 1], pairs[pairs[:, 1] == finger, 0]])
        return set(others.tolist()) & set(self._bodies)

    def _anchor(self, data: mujoco.MjData, palm: int, body: int) -> np.ndarray:
        """Return eq_data of a weld that keeps the present pose: anchor 3, position 3, quaternion 4, torque scale."""
        anchor = np.zeros(11)
        inverse = np.empty(4)
        mujoco.mju_negQuat(inverse, data.xquat[palm])
        mujoco.mju_rotVecQuat(anchor[3:6], data.xpos[body] - data.xpos[palm], inverse)
        mujoco.mju_mulQuat(anchor[6:10], inverse, data.xquat[body])
        anchor[10] = 1.0
        return anchor


class Proprioception:
    """Reads float32 [P] in `layout`; joints that are baked into the model report their start pose."""

    def __init__(self, model: mujoco.MjModel, pose: Mapping[str, float], layout: ProprioLayout):
        fields = r1pro.PROPRIO_256 if layout is ProprioLayout.full_256 else r1pro.PROPRIO_61
        self._fields = fields
        self.size = max(where.stop for where in fields.values())
        self._rest = np.array([{**r1pro.RESET_POSE, **pose}[name] for name in r1pro.JOINT_NAMES])
        present = [
            i
            for i, name in enumerate(r1pro.JOINT_NAMES)
            if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name) >= 0
        ]
        joints = [model.joint(r1pro.JOINT_NAMES[i]) for i in present]
        self._present = np.array(present, int)
        self._qpos = np.array([joint.qposadr[0] for joint in joints], int)
        self._dof = np.array([joint.dofadr[0] for joint in joints], int)
        self._base = model.body("base_link").id
        self._eef = {side: model.site(f"{side}_eef_link").id for side in r1pro.SIDES}
        self._index = {
            part: np.array([r1pro.JOINT_NAMES.index(name) for name in r1pro.joints_of(part)])
            for part in r1pro.ACTION_PARTS
        }

    def read(self, data: mujoco.MjData) -> np.ndarray:
        """Return float32 [P] of one row."""
        values = self._values(data)
        vector = np.empty(self.size, np.float32)
        for name, where in self._fields.items():
            vector[where] = values[name]
        return vector

    def _values(self, data: mujoco.MjData) -> dict[str, np.ndarray]:
        qpos = self._rest.copy()
        qvel = np.zeros(28)
        effort = np.zeros(28)
        qpos[self._present] = data.qpos[self._qpos]
        qvel[self._present] = data.qvel[self._dof]
        effort[self._present] = data.qfrc_actuator[self._dof]
        rotation = data.xmat[self._base].reshape(3, 3)
        values: dict[str, np.ndarray] = {}
        for side in r1pro.SIDES:
            self._add_side(values, data, side, qpos, qvel, rotation)
        for part in ("trunk", "base"):
            values[f"{part}_qpos"] = qpos[self._index[part]]
            values[f"{part}_qvel"] = qvel[self._index[part]]
        # the base joints slide along world axes; OmniGibson reports them in the frame of the base
        values["base_qvel"] = np.array([*(rotation[:2, :2].T @ values["base_qvel"][:2]), values["base_qvel"][2]])
        if "joint_qpos" in self._fields:
            self._add_global(values, data, qpos, qvel, effort, rotation)
        return values

    def _add_side(self, values, data, side: str, qpos: np.ndarray, qvel: np.ndarray, rotation: np.ndarray) -> None:
        for part in (f"arm_{side}", f"gripper_{side}"):
            values[f"{part}_qpos"] = qpos[self._index[part]]
            values[f"{part}_qvel"] = qvel[self._index[part]]
        site = self._eef[side]
        values[f"eef_{side}_pos"] = rotation.T @ (data.site_xpos[site] - data.xpos[self._base])
        quat = np.empty(4)
        mujoco.mju_mat2Quat(quat, (rotation.T @ data.site_xmat[site].reshape(3, 3)).ravel())
        if quat[0] < 0:  # q and -q are one rotation; a jump between them would look like motion
            quat = -quat
        values[f"eef_{side}_quat"] = quat[[1, 2, 3, 0]]

    def _add_global(self, values, data, qpos, qvel, effort, rotation: np.ndarray) -> None:
        values |= {"joint_qpos": qpos, "joint_qvel": qvel, "joint_qeffort": effort}
        yaw = np.arctan2(rotation[1, 0], rotation[0, 0])
        euler = np.array([0.0, 0.0, yaw])  # the base stays upright
        velocity = np.zeros(3)
        velocity[:2] = values["base_qvel"][:2]
        values |= {"robot_pos": data.xpos[self._base], "robot_ori_cos": np.cos(euler), "robot_ori_sin": np.sin(euler)}
        values |= {"robot_2d_ori": yaw, "robot_2d_ori_cos": np.cos(yaw), "robot_2d_ori_sin": np.sin(yaw)}
        values |= {"robot_lin_vel": velocity, "robot_ang_vel": np.array([0.0, 0.0, values["base_qvel"][2]])}
        for name in ("joint_qpos", "arm_left_qpos", "arm_right_qpos", "base_qpos"):
            values[f"{name}_sin"], values[f"{name}_cos"] = np.sin(values[name]), np.cos(values[name])
