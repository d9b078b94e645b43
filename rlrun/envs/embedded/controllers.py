"""From the policy's action to MuJoCo's controls: base velocities, absolute joint targets, grippers."""

from __future__ import annotations

import mujoco
import numpy as np

from rlrun.envs import r1pro


class Controllers:
    """Drives the parts in `driven`. Actions are their slice [A] of R1Pro's 23-D action, clipped to its limits."""

    def __init__(self, model: mujoco.MjModel, driven: tuple[str, ...]):
        self.driven = tuple(part for part in r1pro.ACTION_PARTS if part in driven)
        self.names = r1pro.action_names(self.driven)
        chosen = np.concatenate([np.arange(r1pro.NUM_ACTIONS)[r1pro.ACTION_PARTS[part]] for part in self.driven])
        low, high = r1pro.action_limits()
        self.low, self.high = low[chosen], high[chosen]
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
            cos, sin = np.cos(data.qpos[self._yaw]), np.sin(data.qpos[self._yaw])
            data.ctrl[actuators] = (cos * forward - sin * left, sin * forward + cos * left, turn)

    def hold(self, data: mujoco.MjData) -> None:
        """Command the servos to hold the present joint positions, and the base to stand."""
        for part, (_, actuators) in self._parts.items():
            joints = [data.joint(name).qpos[0] for name in r1pro.joints_of(part)]
            data.ctrl[actuators] = 0.0 if part == "base" else joints
