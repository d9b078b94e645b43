"""The arm and the gripper of LIBERO's Panda: robosuite's operational-space pose control, for many rows at once.

Written from the equations that robosuite documents for OSC_POSE (Khatib, 1987): the hand is drawn to its aim like a
damped spring, forces and torques are decoupled by the inertia that the hand feels, and the elbow is drawn to its rest
in the null space. Rows are batched, since one row's products are too small for NumPy; a row's numbers do not depend on
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

NULL_SPACE_STIFFNESS = 10.0  # 1/s^2, robosuite's
NULL_SPACE_DAMPING = 2 * NULL_SPACE_STIFFNESS**0.5  # 1/s: critical
FINGER_SIGNS = np.array([-1.0, 1.0])  # of a closing gripper


@dataclass(frozen=True)
class RobotDescription:
    """The arm, its controller and its gripper, as robosuite had them after a reset."""

    joints: list[str]
    actuators: list[str]
    grip_site: str
    hand_body: str
    fingers: list[str]
    finger_actuators: list[str]
    gripper_speed: float  # share of a finger's range in a physics step
    max_increment: list[float]  # m and rad, of an action of 1; [6]
    kp: list[float]  # 1/s^2; [6]
    kd: list[float]  # 1/s; [6]
    rest_joints: list[float]  # rad; [7]
    rest_orientation: list[list[float]]  # [3, 3]


@dataclass
class ArmViews:
    """The parts of one MjData that the controller reads and writes: views, without copies."""

    model: mujoco.MjModel
    data: mujoco.MjData
    site: int
    hand: np.ndarray  # [3], position of the grip site
    rotation: np.ndarray  # [9], its matrix
    joints: np.ndarray  # [7]
    velocities: np.ndarray  # [7]
    bias: np.ndarray  # [7], of gravity and motion
    dofs: slice  # of the arm
    inertia_at: np.ndarray  # int [7, 7], where the arm's inertia lies in data.M
    jacobian: np.ndarray  # [6, nv], written by MuJoCo
    arm: np.ndarray  # int [7], actuators
    arm_range: tuple[np.ndarray, np.ndarray]  # lowest and highest torques, [7] each
    fingers: np.ndarray  # int [2], actuators
    fingers_range: tuple[np.ndarray, np.ndarray]  # middles and half widths of their controls, [2] each


def arm_views(model: mujoco.MjModel, data: mujoco.MjData, robot: RobotDescription) -> ArmViews:
    """Find the arm in a scene. Raises ValueError if its joints are not one after another."""
    joints = [model.joint(name) for name in robot.joints]
    positions = _contiguous([int(joint.qposadr[0]) for joint in joints])
    dofs = _contiguous([int(joint.dofadr[0]) for joint in joints])
    site = model.site(robot.grip_site).id
    arm = np.array([model.actuator(name).id for name in robot.actuators])
    fingers = np.array([model.actuator(name).id for name in robot.finger_actuators])
    low, high = model.actuator_ctrlrange[fingers].T
    return ArmViews(
        model=model,
        data=data,
        site=site,
        hand=data.site_xpos[site],
        rotation=data.site_xmat[site],
        joints=data.qpos[positions],
        velocities=data.qvel[dofs],
        bias=data.qfrc_bias[dofs],
        dofs=dofs,
        inertia_at=_inertia_at(model, dofs),
        jacobian=np.zeros((6, model.nv)),
        arm=arm,
        arm_range=(model.actuator_ctrlrange[arm, 0], model.actuator_ctrlrange[arm, 1]),
        fingers=fingers,
        fingers_range=(0.5 * (high + low), 0.5 * (high - low)),
    )


def _contiguous(at: list[int]) -> slice:
    if at != list(range(at[0], at[0] + len(at))):
        raise ValueError(f"the arm's joints are at {at}, not one after another")
    return slice(at[0], at[-1] + 1)


def _inertia_at(model: mujoco.MjModel, dofs: slice) -> np.ndarray:
    """Return the addresses of M[i, j] of these dofs in MuJoCo's sparse lower triangle; int [n, n]."""
    addresses = np.zeros((dofs.stop - dofs.start,) * 2, np.int64)
    for i in range(dofs.start, dofs.stop):
        start = int(model.M_rowadr[i])
        columns = model.M_colind[start : start + int(model.M_rownnz[i])].tolist()
        for j in range(dofs.start, i + 1):
            addresses[i - dofs.start, j - dofs.start] = addresses[j - dofs.start, i - dofs.start] = (
                start + columns.index(j)
            )
    return addresses


class PoseController:
    """Aims of B hands, and the torques that reach them."""

    def __init__(self, num_rows: int, robot: RobotDescription):
        self._robot = robot
        self._kp, self._kd, self._most = (np.array(part) for part in (robot.kp, robot.kd, robot.max_increment))
        self._aim = np.zeros((num_rows, 3))
        self._aim_rotation = np.zeros((num_rows, 3, 3))
        self._rest = np.zeros((num_rows, len(robot.joints)))
        self._believed: dict[int, ArmViews] = {}  # rows in the first physics step of their episodes
        self._grip = np.zeros((num_rows, len(robot.fingers)))  # -1..1 of each finger's range

    def reset(self, row: int, robot: RobotDescription, rest: ArmViews) -> None:
        """Begin an episode: the aim is the hand's orientation at rest, until an action turns it.

        robosuite's controller still believes in the first physics step that the arm is at rest, and so does this one.
        """
        if any(
            getattr(robot, name) != getattr(self._robot, name)
            for name in ("kp", "kd", "max_increment", "gripper_speed")
        ):
            raise ValueError(
                "tasks of one suite have different controllers, and an env worker has one for all its rows"
            )
        self._aim_rotation[row] = robot.rest_orientation
        self._rest[row] = robot.rest_joints
        self._grip[row] = 0.0
        self._believed[row] = rest

    def control(self, rows: np.ndarray, arms: Sequence[ArmViews], actions: np.ndarray, is_new: bool) -> None:
        """Write the controls of a physics step, after mj_step1.

        rows: int [R]; arms: R; actions: [R, 7], -1..1; is_new: it is the first of a control step, which sets aims.
        """
        count = len(arms)
        hand = np.empty((count, 3))
        matrix = np.empty((count, 9))
        joints, velocities, bias = np.empty((3, count, 7))
        jacobian = np.empty((count, 6, 7))
        inertia = np.empty((count, 7, 7))
        for k, present in enumerate(arms):
            arm = self._believed.pop(int(rows[k]), present) if self._believed else present
            mujoco.mj_jacSite(arm.model, arm.data, arm.jacobian[:3], arm.jacobian[3:], arm.site)
            hand[k] = arm.hand
            matrix[k] = arm.rotation
            joints[k] = arm.joints
            velocities[k] = arm.velocities
            bias[k] = present.bias
            jacobian[k] = arm.jacobian[:, arm.dofs]
            inertia[k] = arm.data.M[arm.inertia_at]
        rotation = matrix.reshape(count, 3, 3)
        if is_new:
            self._set_aims(rows, hand, rotation, actions)
        motion = (jacobian @ velocities[..., None])[..., 0]
        error = np.concatenate([self._aim[rows] - hand, _rotation_error(self._aim_rotation[rows], rotation)], axis=1)
        wanted = self._kp * error - self._kd * motion
        torques = _torques(inertia, jacobian, wanted, self._rest[rows] - joints, velocities) + bias
        self._grip[rows] = self._gripped(rows, actions)
        for k, arm in enumerate(arms):
            control = arm.data.ctrl
            (low, high) = arm.arm_range
            (middle, half) = arm.fingers_range
            control[arm.arm] = np.minimum(np.maximum(torques[k], low), high)
            control[arm.fingers] = middle + half * self._grip[rows[k]]

    def _set_aims(self, rows: np.ndarray, hand: np.ndarray, rotation: np.ndarray, actions: np.ndarray) -> None:
        increments = np.clip(actions[:, :6], -1.0, 1.0) * self._most
        self._aim[rows] = hand + increments[:, :3]
        for k in np.flatnonzero(increments[:, 3:].any(1)):  # without a turn, the old orientation stays the aim
            self._aim_rotation[rows[k]] = _matrix(increments[k, 3:]) @ rotation[k]

    def _gripped(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the fingers' new aims [R, 2]: they move at one speed, whatever the size of the action."""
        step = self._robot.gripper_speed * np.sign(actions[:, 6:7])
        return np.minimum(np.maximum(self._grip[rows] + FINGER_SIGNS * step, -1.0), 1.0)


def _rotation_error(aim: np.ndarray, now: np.ndarray) -> np.ndarray:
    """Return half the sum of the cross products of the axes; [R, 3, 3] -> [R, 3], rad for small errors."""
    turn = aim @ now.transpose(0, 2, 1)
    return 0.5 * np.stack(
        [turn[:, 2, 1] - turn[:, 1, 2], turn[:, 0, 2] - turn[:, 2, 0], turn[:, 1, 0] - turn[:, 0, 1]], 1
    )


def _torques(
    inertia: np.ndarray, jacobian: np.ndarray, wanted: np.ndarray, to_rest: np.ndarray, velocities: np.ndarray
) -> np.ndarray:
    """Return the joint torques [R, 7] for accelerations `wanted` of the hand [R, 6], with the rest in the null space.

    inertia: [R, 7, 7]; jacobian: [R, 6, 7]; to_rest: rest minus position of the joints [R, 7].
    """
    count = len(wanted)
    turned = jacobian.transpose(0, 2, 1)
    inverse = jacobian @ _solved(inertia, turned)  # of the inertia at the hand, [R, 6, 6]
    acceleration = (NULL_SPACE_STIFFNESS * to_rest - NULL_SPACE_DAMPING * velocities)[..., None]
    systems = np.zeros((2, count, 6, 6))
    rights = np.empty((2, count, 6, 1))
    # force and torque are decoupled
    systems[0, :, :3, :3] = inverse[:, :3, :3]
    systems[0, :, 3:, 3:] = inverse[:, 3:, 3:]
    systems[1] = inverse
    rights[0] = wanted[..., None]
    rights[1] = jacobian @ acceleration
    wrench, felt = _solved(systems, rights)  # felt: what of the null space's forces would move the hand
    return (turned @ (wrench - felt) + inertia @ acceleration)[..., 0]


def _solved(matrices: np.ndarray, rights: np.ndarray) -> np.ndarray:
    """Return X of A X = B, [..., n, n] and [..., n, m]; of a singular A, the shortest X that comes nearest.

    A row's numbers do not depend on the others, whether these are singular or not finite.
    """
    try:
        return np.linalg.solve(matrices, rights)
    except np.linalg.LinAlgError:
        return np.array([_solved_alone(matrix, right) for matrix, right in zip(matrices, rights, strict=True)])


def _solved_alone(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    if matrix.ndim > 2:
        return _solved(matrix, right)
    try:
        return np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:
        is_finite = np.isfinite(matrix).all()
        return np.linalg.pinv(matrix) @ right if is_finite else np.full(right.shape, np.nan)


def _matrix(turn: np.ndarray) -> np.ndarray:
    """Return the matrix of an axis-angle vector [3] as robosuite computes it: its quaternion is rounded to float32."""
    angle = float(np.linalg.norm(turn))
    quaternion = np.array([np.cos(angle / 2), *(turn / angle * np.sin(angle / 2))], np.float32)
    scale = np.sqrt(2.0 / float(quaternion @ quaternion))
    q = (quaternion * np.float64(scale)).astype(np.float32)
    w, x, y, z = np.outer(q, q)
    unit = np.float64(1.0)
    return np.array(
        [
            [unit - y[2] - z[3], x[2] - w[3], x[3] + w[2]],
            [x[2] + w[3], unit - x[1] - z[3], y[3] - w[1]],
            [x[3] - w[2], y[3] + w[1], unit - x[1] - y[2]],
        ],
        np.float64,
    )
