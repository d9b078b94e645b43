# mypy: disable-error-code="valid-type, index"
# Warp makes types of vectors and matrices when the module is imported, and mypy takes them for variables.
"""The pose controller of rlrun.envs.libero as a Warp kernel: a thread for each row, on the device of the physics."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import warp as wp

from rlrun.envs.libero.controller import (
    FINGER_SIGNS,
    NULL_SPACE_DAMPING,
    NULL_SPACE_STIFFNESS,
    ArmViews,
    RobotDescription,
    arm_views,
)

wp.set_module_options({"enable_backward": False, "max_unroll": 1})  # unrolled, the loops take long to compile

NUM_JOINTS = 7
_Joints = wp.types.vector(NUM_JOINTS, wp.float64)
_Pose = wp.types.vector(6, wp.float64)
_Inertia = wp.types.matrix((NUM_JOINTS, NUM_JOINTS), wp.float64)
_Felt = wp.types.matrix((6, 6), wp.float64)
_Jacobian = wp.types.matrix((6, NUM_JOINTS), wp.float64)
# Share of a diagonal element below which what is left of it is rounding: the hand cannot move in that direction.
_SINGULAR = wp.constant(wp.float64(1e-12))
_STIFFNESS = wp.constant(wp.float64(NULL_SPACE_STIFFNESS))
_DAMPING = wp.constant(wp.float64(NULL_SPACE_DAMPING))
_ZERO = wp.constant(wp.float64(0.0))
_ONE = wp.constant(wp.float64(1.0))


@wp.struct
class Arm:
    """What the controller knows of the robot, and where its parts are in the scene."""

    joints: int  # first in qpos
    dofs: int  # first in qvel
    site: int
    kp: _Pose
    kd: _Pose
    most: _Pose  # m and rad, of an action of 1
    speed: wp.float64  # share of a finger's range in a physics step
    rest: _Joints
    # the arm as the controller believes it to be in the first physics step of an episode
    rest_hand: wp.vec3d
    rest_rotation: wp.mat33d
    rest_jacobian: _Jacobian
    rest_inertia: _Inertia


@wp.func
def _share(part: wp.float64, whole: wp.float64):
    """Return part / whole; 0 for a direction without inertia."""
    found = wp.float64(0.0)
    if whole > _ZERO:
        found = part / whole
    return found


@wp.func
def _factor(a: Any, n: int):
    """Return the lower Cholesky factor of a positive matrix; a direction without inertia gets a zero."""
    lower = a - a
    for j in range(n):
        left = a[j, j]
        for k in range(j):
            left -= lower[j, k] * lower[j, k]
        if left > _SINGULAR * a[j, j]:
            lower[j, j] = wp.sqrt(left)
        for i in range(j + 1, n):
            rest = a[i, j]
            for k in range(j):
                rest -= lower[i, k] * lower[j, k]
            lower[i, j] = _share(rest, lower[j, j])
    return lower


@wp.func
def _solved(lower: Any, right: Any, n: int):
    """Return x of A x = right, by A's factor; zero in directions without inertia."""
    half = right - right
    for i in range(n):
        rest = right[i]
        for k in range(i):
            rest -= lower[i, k] * half[k]
        half[i] = _share(rest, lower[i, i])
    x = right - right
    for back in range(n):
        i = n - 1 - back
        rest = half[i]
        for k in range(i + 1, n):
            rest -= lower[k, i] * x[k]
        x[i] = _share(rest, lower[i, i])
    return x


@wp.func
def _torques(inertia: _Inertia, jacobian: _Jacobian, wanted: _Pose, to_rest: _Joints, velocities: _Joints):
    """Return the joint torques for accelerations `wanted` of the hand, with the rest in the null space."""
    factor = _factor(inertia, 7)
    inverse = _Felt()  # of the inertia at the hand
    for c in range(6):
        column = _Joints()
        for j in range(7):
            column[j] = jacobian[c, j]
        column = _solved(factor, column, 7)
        product = jacobian * column
        for r in range(6):
            inverse[r, c] = product[r]
    decoupled = inverse  # force and torque are decoupled
    for r in range(3):
        for c in range(3):
            decoupled[r, 3 + c] = _ZERO
            decoupled[3 + r, c] = _ZERO
    acceleration = _STIFFNESS * to_rest - _DAMPING * velocities
    wrench = _solved(_factor(decoupled, 6), wanted, 6)
    felt = _solved(_factor(inverse, 6), jacobian * acceleration, 6)  # of the null space's forces at the hand
    return wp.transpose(jacobian) * (wrench - felt) + inertia * acceleration


@wp.func
def _matrix(turn: wp.vec3d):
    """Return the matrix of an axis-angle vector as robosuite computes it: its quaternion is rounded to float32."""
    angle = wp.length(turn)
    sine = wp.sin(angle / wp.float64(2.0)) / angle
    w = wp.float32(wp.cos(angle / wp.float64(2.0)))
    x = wp.float32(turn[0] * sine)
    y = wp.float32(turn[1] * sine)
    z = wp.float32(turn[2] * sine)
    scale = wp.sqrt(wp.float64(2.0) / wp.float64(w * w + x * x + y * y + z * z))
    w = wp.float32(wp.float64(w) * scale)
    x = wp.float32(wp.float64(x) * scale)
    y = wp.float32(wp.float64(y) * scale)
    z = wp.float32(wp.float64(z) * scale)
    xx = wp.float64(x * x)
    yy = wp.float64(y * y)
    zz = wp.float64(z * z)
    xy = wp.float64(x * y)
    xz = wp.float64(x * z)
    yz = wp.float64(y * z)
    wx = wp.float64(w * x)
    wy = wp.float64(w * y)
    wz = wp.float64(w * z)
    return wp.mat33d(
        _ONE - yy - zz, xy - wz, xz + wy, xy + wz, _ONE - xx - zz, yz - wx, xz - wy, yz + wx, _ONE - xx - yy
    )


@wp.func
def _rotation_error(aim: wp.mat33d, now: wp.mat33d):
    """Return half the sum of the cross products of the axes; rad for small errors."""
    turn = aim * wp.transpose(now)
    return wp.float64(0.5) * wp.vec3d(turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1])


@wp.func
def _row_matrix(numbers: wp.array2d[float], row: int):
    found = wp.mat33d()
    for i in range(3):
        for j in range(3):
            found[i, j] = wp.float64(numbers[row, 3 * i + j])
    return found


@wp.func
def _set_aim(
    arm: Arm,
    row: int,
    actions: wp.array2d[float],
    hand: wp.vec3d,
    rotation: wp.mat33d,
    aim: wp.array2d[float],
    aim_rotation: wp.array2d[float],
):
    turn = wp.vec3d()
    turns = wp.float64(0.0)
    for i in range(3):
        moved = wp.clamp(wp.float64(actions[row, i]), -_ONE, _ONE) * arm.most[i]
        aim[row, i] = wp.float32(hand[i] + moved)
        turn[i] = wp.clamp(wp.float64(actions[row, 3 + i]), -_ONE, _ONE) * arm.most[3 + i]
        turns += wp.abs(turn[i])
    if turns > _ZERO:  # without a turn, the old orientation stays the aim
        found = _matrix(turn) * rotation
        for i in range(3):
            for j in range(3):
                aim_rotation[row, 3 * i + j] = wp.float32(found[i, j])


@wp.kernel
def _control(
    arm: Arm,
    is_new: int,
    frozen: wp.array[int],
    actions: wp.array2d[float],
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    bias: wp.array2d[float],
    inertias: wp.array2d[float],
    inertia_at: wp.array2d[int],
    site_xpos: wp.array2d[wp.vec3],
    site_xmat: wp.array2d[wp.mat33],
    jacp: wp.array3d[float],
    jacr: wp.array3d[float],
    motors: wp.array[int],
    motor_range: wp.array2d[float],
    fingers: wp.array[int],
    finger_range: wp.array2d[float],
    finger_signs: wp.array[float],
    aim: wp.array2d[float],
    aim_rotation: wp.array2d[float],
    grip: wp.array2d[float],
    believed: wp.array2d[float],
    ctrl: wp.array2d[float],
):
    row = wp.tid()
    if frozen[row] >= 0:
        return
    hand = wp.vec3d(arm.rest_hand)
    rotation = wp.mat33d(arm.rest_rotation)
    jacobian = _Jacobian(arm.rest_jacobian)
    inertia = _Inertia(arm.rest_inertia)
    joints = _Joints(arm.rest)
    velocities = _Joints()
    if believed[row, 0] == 0.0:
        hand = wp.vec3d(site_xpos[row, arm.site])
        rotation = wp.mat33d(site_xmat[row, arm.site])
        for j in range(7):
            joints[j] = wp.float64(qpos[row, arm.joints + j])
            velocities[j] = wp.float64(qvel[row, arm.dofs + j])
            for i in range(3):
                jacobian[i, j] = wp.float64(jacp[row, i, arm.dofs + j])
                jacobian[3 + i, j] = wp.float64(jacr[row, i, arm.dofs + j])
            for i in range(7):
                inertia[i, j] = wp.float64(inertias[row, inertia_at[i, j]])
    believed[row, 0] = 0.0
    if is_new == 1:
        _set_aim(arm, row, actions, hand, rotation, aim, aim_rotation)
    motion = jacobian * velocities
    turned = _rotation_error(_row_matrix(aim_rotation, row), rotation)
    wanted = _Pose()
    for i in range(3):
        wanted[i] = arm.kp[i] * (wp.float64(aim[row, i]) - hand[i]) - arm.kd[i] * motion[i]
        wanted[3 + i] = arm.kp[3 + i] * turned[i] - arm.kd[3 + i] * motion[3 + i]
    torques = _torques(inertia, jacobian, wanted, arm.rest - joints, velocities)
    for j in range(7):
        torque = wp.float32(torques[j]) + bias[row, arm.dofs + j]
        ctrl[row, motors[j]] = wp.clamp(torque, motor_range[j, 0], motor_range[j, 1])
    step = wp.float64(0.0)  # fingers move at one speed, whatever the size of the action
    if actions[row, 6] > 0.0:
        step = arm.speed
    if actions[row, 6] < 0.0:
        step = -arm.speed
    for j in range(2):
        grip[row, j] = wp.clamp(grip[row, j] + finger_signs[j] * wp.float32(step), -1.0, 1.0)
        ctrl[row, fingers[j]] = finger_range[j, 0] + finger_range[j, 1] * grip[row, j]


class WarpController:
    """Aims of B hands, and the torques that reach them, on the device that is current when it is made."""

    def __init__(self, num_rows: int, model: mujoco.MjModel, robot: RobotDescription, rest: ArmViews):
        """rest: the arm as a reset of robosuite leaves it, in MuJoCo."""
        if len(robot.joints) != NUM_JOINTS or len(robot.fingers) != len(FINGER_SIGNS):
            raise ValueError(f"the arm has {len(robot.joints)} joints and {len(robot.fingers)} fingers, not 7 and 2")
        views = arm_views(model, mujoco.MjData(model), robot)
        self._arm = _arm(model, robot, rest)
        self.site = views.site
        self.aim = wp.zeros((num_rows, 3), dtype=float)
        self.aim_rotation = wp.zeros((num_rows, 9), dtype=float)
        self.grip = wp.zeros((num_rows, 2), dtype=float)
        self.believed = wp.zeros((num_rows, 1), dtype=float)
        self._first = {
            "aim_rotation": np.ravel(robot.rest_orientation),
            "grip": np.zeros(len(robot.fingers)),
            "believed": np.ones(1),
        }
        self._inertia_at = wp.array(views.inertia_at, dtype=int)
        self._motors = wp.array(views.arm, dtype=int)
        self._fingers = wp.array(views.fingers, dtype=int)
        self._motor_range = wp.array(np.stack(views.arm_range, 1), dtype=float)
        self._finger_range = wp.array(np.stack(views.fingers_range, 1), dtype=float)
        self._finger_signs = wp.array(FINGER_SIGNS, dtype=float)
        self._jacp = wp.zeros((num_rows, 3, model.nv), dtype=float)
        self._jacr = wp.zeros((num_rows, 3, model.nv), dtype=float)
        self._body = wp.full(num_rows, int(model.site_bodyid[views.site]), dtype=int)

    @property
    def state(self) -> tuple[wp.array, ...]:
        """float [B, …] of each row: what a row's later controls depend on, beside the physics."""
        return self.aim, self.aim_rotation, self.grip, self.believed

    def reset(self, rows: np.ndarray) -> None:
        """Begin episodes in rows, int [R]: the aim is the hand's orientation at rest, until an action turns it."""
        for name, first in self._first.items():
            array = getattr(self, name)
            numbers = array.numpy()
            numbers[rows] = first
            array.assign(numbers)

    def control(self, library: Any, model: Any, data: Any, frozen: wp.array, actions: wp.array, is_new: bool) -> None:
        """Write the controls of a physics step, after step1, in rows that are not frozen.

        library: mujoco_warp; frozen: int [B], negative in rows that run; actions: float [B, 7], -1..1; is_new: it is
        the first physics step of a control step, which sets aims.
        """
        library.jac(model, data, self._jacp, self._jacr, data.site_xpos[:, self.site], self._body)
        wp.launch(
            _control,
            dim=len(frozen),
            inputs=[self._arm, int(is_new), frozen, actions, data.qpos, data.qvel, data.qfrc_bias, data.M]
            + [self._inertia_at, data.site_xpos, data.site_xmat, self._jacp, self._jacr, self._motors]
            + [self._motor_range, self._fingers, self._finger_range, self._finger_signs],
            outputs=[*self.state, data.ctrl],
        )


def _arm(model: mujoco.MjModel, robot: RobotDescription, rest: ArmViews) -> Arm:
    mujoco.mj_jacSite(model, rest.data, rest.jacobian[:3], rest.jacobian[3:], rest.site)
    arm = Arm()
    arm.joints = int(model.joint(robot.joints[0]).qposadr[0])
    arm.dofs = rest.dofs.start
    arm.site = rest.site
    arm.kp = _Pose(robot.kp)
    arm.kd = _Pose(robot.kd)
    arm.most = _Pose(robot.max_increment)
    arm.speed = wp.float64(robot.gripper_speed)
    arm.rest = _Joints(robot.rest_joints)
    arm.rest_hand = wp.vec3d(rest.hand)
    arm.rest_rotation = wp.mat33d(rest.rotation)
    arm.rest_jacobian = _Jacobian(rest.jacobian[:, rest.dofs].ravel())
    arm.rest_inertia = _Inertia(rest.data.M[rest.inertia_at].ravel())
    return arm
