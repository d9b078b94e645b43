"""The interface of an activity: its scene, start positions, BDDL terms and predicates, progress and expert."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from xml.etree.ElementTree import Element

import mujoco
import numpy as np

from rlrun.envs.embedded.controllers import Controllers
from rlrun.envs.embedded.expert import Expert
from rlrun.envs.embedded.goals import Predicate
from rlrun.envs.embedded.kinematics import ArmKinematics
from rlrun.envs.embedded.world_state import Row

ARM_SPREAD = 0.08  # rad to each side, of every arm joint


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
        """Look up what the methods below need from the compiled model."""

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
            raise NotImplementedError("the expert works with the right arm: env.controlled must name arm_right")
        return self.kinematics

    def fingertip(self, row: Row) -> np.ndarray:
        """Return float64 [3]: the point between the right fingertips."""
        return row.data.site_xpos[self._fingertip]

    def disturb_arm(self, row: Row, random: np.random.Generator, spread: float) -> None:
        """Vary the start pose of the right arm, if it is driven."""
        offset = random.uniform(-1, 1, 7) * ARM_SPREAD * spread
        if self.kinematics is not None:
            row.data.qpos[self.kinematics.qpos] += offset
