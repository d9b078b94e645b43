"""Inverse kinematics of one arm by damped least squares on a scratch copy of the state."""

from __future__ import annotations

import mujoco
import numpy as np

from rlrun.envs import r1pro

NUM_ITERATIONS = 60
LEVEL = np.array([0.0, 1.0, 0.0])  # the fingers open along y, so that they fit around upright objects
POINTING_GAIN = 0.3
DAMPING = 1e-3
POSTURE_GAIN = 0.05
MAX_STEP = 0.2  # rad per iteration and joint
MAX_SOLUTIONS = 4096
CONVERGED = 1e-4  # rad per iteration


class ArmKinematics:
    """Joint positions that bring an arm's fingertip to a point while the fingers point along a direction."""

    def __init__(self, model: mujoco.MjModel, side: str):
        self.model, self._scratch = model, mujoco.MjData(model)
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
        jacobian, wish = jacobian.copy(), wish.copy()
        for _ in range(3):
            inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + DAMPING * np.eye(3))
            step = inverse @ (error - jacobian @ wish) + wish
            blocked = ((q <= self._low) & (step < 0)) | ((q >= self._high) & (step > 0))
            if not blocked.any():
                break
            jacobian[:, blocked], wish[blocked] = 0.0, 0.0  # blocked joints do not move; the others compensate
        return np.clip(step, -MAX_STEP, MAX_STEP)

    def fingertip(self, data: mujoco.MjData) -> np.ndarray:
        """Return float64 [3], the world position between the fingertips."""
        return data.site_xpos[self.site]
