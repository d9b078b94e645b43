"""R1Pro as data: joints and limits, action and proprioception layouts, cameras, reset pose.

Numbers follow Galaxea's URDF and OmniGibson's r1pro.yaml; shapes and masses of the embedded
model are rlrun's own ("R1Pro-like, not Galaxea's model"). Lengths in m, angles in rad.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlrun.envs.r1pro_keys import CAMERAS as CAMERAS

SIDES = ("left", "right")

# The 23-D action of OmniGibson's R1Pro, in its controller order.
ACTION_PARTS: dict[str, slice] = {
    "base": slice(0, 3),
    "trunk": slice(3, 7),
    "arm_left": slice(7, 14),
    "gripper_left": slice(14, 15),
    "arm_right": slice(15, 22),
    "gripper_right": slice(22, 23),
}
NUM_ACTIONS = 23

BASE_VELOCITY = np.array([0.75, 0.75, 1.0])  # m/s, m/s, rad/s in the base frame, at action 1
FINGER_OPEN = 0.05  # travel of each finger at action +1; action -1 is 0
SHOULDER = {side: (0.0, sign * 0.0972, 0.3030) for side, sign in (("left", 1), ("right", -1))}  # in torso_link4
GRIPPER_ORIGIN = (-0.0295, 0.0, -0.1607)  # gripper_link in arm_link7
FINGER_ORIGIN = (0.0, 0.0135, -0.0369)  # in gripper_link, mirrored in y
FINGERTIP = (0.0, 0.0, -0.125)  # in gripper_link, between the tips
# The 28 joints in OmniGibson's order: 6 virtual base joints, trunk, arms interleaved, fingers.
BASE_JOINTS = tuple(f"base_footprint_{axis}_joint" for axis in ("x", "y", "z", "rx", "ry", "rz"))
PLANAR_JOINTS = tuple(BASE_JOINTS[i] for i in (0, 1, 5))  # those that really move
FINGER_JOINTS = tuple(f"{side}_gripper_finger_joint{i}" for side in SIDES for i in (1, 2))
INSTRUCTIONS = {
    "turning_on_radio": "turn on the radio",
    "picking_up_trash": "put the soda cans into the trash can",
}


@dataclass(frozen=True)
class Joint:
    """A joint and the link it moves. Example: JOINTS["torso_joint1"].range == (-1.1345, 1.8326)."""

    name: str
    origin: tuple[float, float, float]  # in the parent link
    axis: tuple[float, float, float]
    range: tuple[float, float]
    mass: float  # of the moved link, kg
    effort: float  # Nm
    stiffness: float  # of the embedded position servo, Nm/rad


def _trunk() -> tuple[Joint, ...]:
    return (
        Joint("torso_joint1", (-0.079, 0, 0.3427), (0, 1, 0), (-1.1345, 1.8326), 5.72, 400, 4000),
        Joint("torso_joint2", (0, 0, 0.40), (0, 1, 0), (-2.7925, 2.5307), 3.5, 400, 4000),
        Joint("torso_joint3", (0, 0, 0.30), (0, -1, 0), (-1.8326, 1.5708), 3.4, 300, 3000),
        Joint("torso_joint4", (0, 0, 0.0996), (0, 0, 1), (-3.0543, 3.0543), 5.0, 200, 2000),
    )


def _arm(side: str) -> tuple[Joint, ...]:
    s = 1.0 if side == "left" else -1.0
    roll = (-0.1745, 3.1416) if side == "left" else (-3.1416, 0.1745)
    rows = (
        ((0, s * 0.0735, 0), (0, 1, 0), (-4.4506, 1.3090), 1.135, 55, 400),
        ((0.025, s * 0.0813, 0), (1, 0, 0), roll, 0.92, 55, 400),
        ((-0.025, 0, -0.1155), (0, 0, 1), (-2.3562, 2.3562), 1.245, 25, 200),
        ((0, 0.0351, -0.1945), (0, 1, 0), (-2.0944, 0.3491), 0.827, 25, 200),
        ((0, -0.0351, -0.095), (0, 0, 1), (-2.3562, 2.3562), 0.785, 18, 120),
        ((0, -s * 0.028, -0.1631), (0, 1, 0), (-1.0472, 1.0472), 0.527, 18, 120),
        ((0.0295, s * 0.028, 0), (1, 0, 0), (-1.5708, 1.5708), 0.185, 18, 120),
    )
    return tuple(Joint(f"{side}_arm_joint{i}", *row) for i, row in enumerate(rows, start=1))


PART_JOINTS: dict[str, tuple[Joint, ...]] = {"trunk": _trunk(), "arm_left": _arm("left"), "arm_right": _arm("right")}

JOINT_NAMES: tuple[str, ...] = (
    *BASE_JOINTS,
    *(joint.name for joint in PART_JOINTS["trunk"]),
    *(f"{side}_arm_joint{i}" for i in range(1, 8) for side in SIDES),
    *FINGER_JOINTS,
)
RESET_POSE: dict[str, float] = {
    **dict.fromkeys(JOINT_NAMES, 0.0),
    **{joint.name: q for joint, q in zip(PART_JOINTS["trunk"], (1.025, -1.45, -0.47, 0.0), strict=True)},
    **dict.fromkeys(FINGER_JOINTS, FINGER_OPEN),
}


def joints_of(part: str) -> tuple[str, ...]:
    """Return the joint names of one action part: "gripper_left" has two fingers."""
    if part == "base":
        return PLANAR_JOINTS
    if part.startswith("gripper_"):
        return tuple(name for name in FINGER_JOINTS if name.startswith(part.removeprefix("gripper_")))
    return tuple(joint.name for joint in PART_JOINTS[part])


def action_limits() -> tuple[np.ndarray, np.ndarray]:
    """Return float32 [23] low and high: velocities and grippers in [-1, 1], trunk and arms at their joint limits."""
    low = -np.ones(NUM_ACTIONS, np.float32)
    high = np.ones(NUM_ACTIONS, np.float32)
    for part, joints in PART_JOINTS.items():
        low[ACTION_PARTS[part]] = [joint.range[0] for joint in joints]
        high[ACTION_PARTS[part]] = [joint.range[1] for joint in joints]
    return low, high


def action_names(parts: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Return names such as "arm_right/3" of the dimensions of `parts` (None: all 23), in 23-D order."""
    return tuple(
        f"{part}/{i}"
        for part, where in ACTION_PARTS.items()
        if parts is None or part in parts
        for i in range(where.stop - where.start)
    )


def _layout(*fields: tuple[str, int]) -> dict[str, slice]:
    slices = {}
    start = 0
    for name, size in fields:
        slices[name] = slice(start, start + size)
        start += size
    return slices


def _arm_fields(side: str, has_trigonometry: bool) -> tuple[tuple[str, int], ...]:
    trigonometry = ((f"arm_{side}_qpos_sin", 7), (f"arm_{side}_qpos_cos", 7)) if has_trigonometry else ()
    return (
        (f"arm_{side}_qpos", 7),
        *trigonometry,
        (f"arm_{side}_qvel", 7),
        (f"eef_{side}_pos", 3),
        (f"eef_{side}_quat", 4),
        (f"gripper_{side}_qpos", 2),
        (f"gripper_{side}_qvel", 2),
    )


# Quaternions are x, y, z, w; end-effector poses are in the base frame.
PROPRIO_256: dict[str, slice] = _layout(
    *((f"joint_{kind}", 28) for kind in ("qpos", "qpos_sin", "qpos_cos", "qvel", "qeffort")),
    *((f"robot_{kind}", 3) for kind in ("pos", "ori_cos", "ori_sin")),
    *((f"robot_2d_ori{kind}", 1) for kind in ("", "_cos", "_sin")),
    *((f"robot_{kind}", 3) for kind in ("lin_vel", "ang_vel")),
    *_arm_fields("left", True),
    *_arm_fields("right", True),
    ("trunk_qpos", 4),
    ("trunk_qvel", 4),
    *((f"base_{kind}", 3) for kind in ("qpos", "qpos_sin", "qpos_cos", "qvel")),
)
PROPRIO_61: dict[str, slice] = _layout(
    ("base_qvel", 3),
    *_arm_fields("left", False),
    *_arm_fields("right", False),
    ("trunk_qpos", 4),
    ("trunk_qvel", 4),
)


def instruction_of(activity: str) -> str:
    """Return the instruction of an activity; without one, the activity's name in words."""
    return INSTRUCTIONS.get(activity, activity.replace("_", " "))
