"""The simulation of one row: its mjData, latched states, grasps and clock; rows share one mjModel."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import mujoco
import numpy as np

mujoco.set_mju_user_warning(logging.getLogger(__name__).warning)  # else MuJoCo writes a file in the working directory


@dataclass(eq=False)
class Row:
    """State of one episode. `is_over` rows must be reset before they are stepped again."""

    data: mujoco.MjData
    seed: int = 0
    num_steps: int = 0
    is_over: bool = True
    toggled_on: set[str] = field(default_factory=set)  # latched: stays on once its button was pressed
    held: dict[str, str] = field(default_factory=dict)  # side -> body in that hand
    grasp_anchors: dict[int, np.ndarray] = field(default_factory=dict)  # equality id -> its eq_data while held
    satisfied_fraction: float = 0.0
    shaping: float = 0.0

    def restart(self, model: mujoco.MjModel, seed: int) -> None:
        """Reset to the model's start state, with nothing left of the last episode."""
        mujoco.mj_resetData(model, self.data)
        self.seed, self.num_steps, self.is_over = seed, 0, False
        self.toggled_on.clear()
        self.held.clear()
        self.grasp_anchors.clear()

    def is_broken(self) -> bool:
        """Return whether MuJoCo warned about a bad state (it then resets the data itself) or a number is not finite."""
        bad = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
        if any(self.data.warning[kind].number for kind in bad):
            return True
        return not (np.isfinite(self.data.qpos.sum()) and np.isfinite(self.data.qvel.sum()))
