"""Controllers of the embedded robot: joint and gripper control, inverse kinematics, and the scripted expert."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import mujoco
import numpy as np

from rlrun.envs import r1pro
from rlrun.envs.embedded.goals import Row

NUM_ITERATIONS = 60
LEVEL = np.array([0.0, 1.0, 0.0])  # the fingers open along y, so that they fit around upright objects
POINTING_GAIN = 0.3
DAMPING = 1e-3
POSTURE_GAIN = 0.05
MAX_STEP = 0.2  # rad per iteration and joint
MAX_SOLUTIONS = 4096
CONVERGED = 1e-4  # rad per iteration


class Controllers:
    """Drives the parts in `driven`. Actions are their slice [A] of R1Pro's 23-D action, clipped to its limits."""

    def __init__(self, model: mujoco.MjModel, driven: tuple[str, ...]):
        self.driven = tuple(part for part in r1pro.ACTION_PARTS if part in driven)
        self.names = r1pro.action_names(self.driven)
        chosen = np.concatenate([np.arange(r1pro.NUM_ACTIONS)[r1pro.ACTION_PARTS[part]] for part in self.driven])
        low, high = r1pro.action_limits()
        self.low = low[chosen]
        self.high = high[chosen]
        self._parts: dict[str, tuple[slice, np.ndarray]] = {}  # part -> its slice of the action, its actuators
        start = 0
        for part in self.driven:
            where = slice(start, start + r1pro.ACTION_PARTS[part].stop - r1pro.ACTION_PARTS[part].start)
            self._parts[part] = (where, np.array([model.actuator(name).id for name in r1pro.joints_of(part)]))
            start = where.stop
        joint_parts = [part for part in self.driven if part != "base" and not part.startswith("gripper_")]
        none = np.zeros(0, int)
        self._joint_action = np.concatenate([np.arange(start)[self._parts[p][0]] for p in joint_parts] or [none])
        self._joint_actuator = np.concatenate([self._parts[p][1] for p in joint_parts] or [none])
        self._yaw = model.joint(r1pro.PLANAR_JOINTS[2]).qposadr[0] if "base" in self.driven else None

    def where(self, part: str) -> slice:
        """Return the dimensions of `part` in the controlled action."""
        return self._parts[part][0]

    def apply(self, data: mujoco.MjData, action: np.ndarray) -> None:
        """Write controls for one control step; `action` float [A] must already be clipped."""
        data.ctrl[self._joint_actuator] = action[self._joint_action]
        for part, (where, actuators) in self._parts.items():
            if part.startswith("gripper_"):
                data.ctrl[actuators] = (action[where][0] + 1.0) / 2.0 * r1pro.FINGER_OPEN
        if self._yaw is not None:
            where, actuators = self._parts["base"]
            forward, left, turn = action[where] * r1pro.BASE_VELOCITY
            cos = np.cos(data.qpos[self._yaw])
            sin = np.sin(data.qpos[self._yaw])
            data.ctrl[actuators] = (cos * forward - sin * left, sin * forward + cos * left, turn)

    def hold(self, data: mujoco.MjData) -> None:
        """Command the servos to hold the present joint positions, and the base to stand."""
        for part, (_, actuators) in self._parts.items():
            joints = [data.joint(name).qpos[0] for name in r1pro.joints_of(part)]
            data.ctrl[actuators] = 0.0 if part == "base" else joints


class ArmKinematics:
    """Joint positions that bring an arm's fingertip to a point while the fingers point along a direction."""

    def __init__(self, model: mujoco.MjModel, side: str):
        self.model = model
        self._scratch = mujoco.MjData(model)
        joints = [model.joint(name) for name in r1pro.joints_of(f"arm_{side}")]
        self.qpos = np.array([joint.qposadr[0] for joint in joints])
        self._dof = np.array([joint.dofadr[0] for joint in joints])
        self._low, self._high = np.array([joint.range for joint in joints]).T
        carriers = [name for part in ("base", "trunk") for name in r1pro.joints_of(part)]
        present = [name for name in carriers if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name) >= 0]
        self._carriers = np.array([model.joint(name).qposadr[0] for name in present], int)  # base and trunk
        self._solutions: dict[bytes, np.ndarray] = {}  # an expert asks for the same few points again and again
        self.site = model.site(f"{side}_eef_link").id

    def solve(self, data: mujoco.MjData, point, direction, posture: np.ndarray) -> np.ndarray:
        """Return float64 [7] joint positions nearest to `posture`; best effort if the point is out of reach."""
        key = b"".join(np.round(part, 6).tobytes() for part in (point, direction, posture, data.qpos[self._carriers]))
        if key not in self._solutions:
            if len(self._solutions) >= MAX_SOLUTIONS:
                self._solutions.clear()
            self._solutions[key] = self._search(data, point, direction, posture)
        return self._solutions[key]

    def _search(self, data: mujoco.MjData, point, direction, posture: np.ndarray) -> np.ndarray:
        scratch = self._scratch
        scratch.qpos[:] = data.qpos
        scratch.qpos[self.qpos] = posture
        jacobian = np.zeros((6, self.model.nv))
        for _ in range(NUM_ITERATIONS):
            mujoco.mj_kinematics(self.model, scratch)
            mujoco.mj_comPos(self.model, scratch)
            mujoco.mj_jacSite(self.model, scratch, jacobian[:3], jacobian[3:], self.site)
            hand = scratch.site_xmat[self.site].reshape(3, 3)
            turn = np.cross(-hand[:, 2], direction) + np.cross(hand[:, 1], LEVEL)
            q = scratch.qpos[self.qpos]
            wish = POINTING_GAIN * jacobian[3:, self._dof].T @ turn + POSTURE_GAIN * (posture - q)
            step = self._step(q, point - scratch.site_xpos[self.site], jacobian[:3, self._dof], wish)
            scratch.qpos[self.qpos] = np.clip(q + step, self._low, self._high)
            if np.abs(scratch.qpos[self.qpos] - q).max() < CONVERGED:
                break
        return scratch.qpos[self.qpos].copy()

    def _step(self, q: np.ndarray, error: np.ndarray, jacobian: np.ndarray, wish: np.ndarray) -> np.ndarray:
        """Return a step that reduces `error` [3], follows `wish` [7] in the null space, and keeps joint limits."""
        jacobian = jacobian.copy()
        wish = wish.copy()
        for _ in range(3):
            inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + DAMPING * np.eye(3))
            step = inverse @ (error - jacobian @ wish) + wish
            blocked = ((q <= self._low) & (step < 0)) | ((q >= self._high) & (step > 0))
            if not blocked.any():
                break
            # blocked joints do not move; the others compensate
            jacobian[:, blocked] = 0.0
            wish[blocked] = 0.0
        return np.clip(step, -MAX_STEP, MAX_STEP)

    def fingertip(self, data: mujoco.MjData) -> np.ndarray:
        """Return float64 [3], the world position between the fingertips."""
        return data.site_xpos[self.site]


class Expert(ABC):
    """A scripted solution that reads the simulator's state. It has no memory, so it recovers from any state."""

    @abstractmethod
    def action(self, row: Row) -> np.ndarray:
        """Return float32 [A]: the action of the next control step."""


class RightArmExpert(Expert):
    """Moves the right hand; every other driven part holds its start pose. Subclasses choose the target."""

    POINTING: np.ndarray  # unit vector along the fingers
    POSTURE: np.ndarray  # arm joints that the solution should resemble
    MAX_LEAD: float  # rad by which the target leads a joint; sets the speed

    def __init__(self, kinematics: ArmKinematics, controllers: Controllers, start_pose: Mapping[str, float]):
        missing = sorted({"arm_right", "gripper_right"} - set(controllers.driven))
        if missing:
            raise NotImplementedError(
                f"the scripted expert needs {', '.join(missing)} in env.embedded.controlled; add it, or give demos.path"
            )
        self._kinematics = kinematics
        self._controllers = controllers
        self._hold = np.zeros(len(controllers.low), np.float32)
        for part in controllers.driven:
            if part.startswith("gripper_"):
                self._hold[controllers.where(part)] = -1.0
            elif part != "base":
                pose = {**r1pro.RESET_POSE, **start_pose}
                self._hold[controllers.where(part)] = [pose[name] for name in r1pro.joints_of(part)]

    def tip(self, row: Row) -> np.ndarray:
        """Return float64 [3]: the fingertip in the world."""
        return self._kinematics.fingertip(row.data)

    def reach(self, row: Row, point: np.ndarray, gripper: float) -> np.ndarray:
        """Return the action that brings the fingertip nearer to `point`; all joints move in proportion."""
        target = self._kinematics.solve(row.data, point, self.POINTING, self.POSTURE)
        q = row.data.qpos[self._kinematics.qpos]
        step = target - q
        step *= min(1.0, self.MAX_LEAD / max(np.abs(step).max(), 1e-9))
        action = self._hold.copy()
        action[self._controllers.where("arm_right")] = q + step
        action[self._controllers.where("gripper_right")] = gripper
        return np.clip(action, self._controllers.low, self._controllers.high)
