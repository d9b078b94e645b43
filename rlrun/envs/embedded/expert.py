"""Scripted experts: compute the next action of one arm from a target point of the fingertip."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from rlrun.envs import r1pro
from rlrun.envs.embedded.controllers import Controllers
from rlrun.envs.embedded.kinematics import ArmKinematics
from rlrun.envs.embedded.world_state import Row


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
                f"the scripted expert needs {', '.join(missing)} in env.controlled; add it, or give demos.path"
            )
        self._kinematics, self._controllers = kinematics, controllers
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
