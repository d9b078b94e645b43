"""Proprioception: R1Pro's 28 joints and poses, read from mjData into OmniGibson's vectors."""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import numpy as np

from rlrun.config.schema import ProprioLayout
from rlrun.envs import r1pro


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
        qpos, qvel, effort = self._rest.copy(), np.zeros(28), np.zeros(28)
        qpos[self._present] = data.qpos[self._qpos]
        qvel[self._present] = data.qvel[self._dof]
        effort[self._present] = data.qfrc_actuator[self._dof]
        rotation = data.xmat[self._base].reshape(3, 3)
        values: dict[str, np.ndarray] = {}
        for side in r1pro.SIDES:
            self._add_side(values, data, side, qpos, qvel, rotation)
        for part in ("trunk", "base"):
            values[f"{part}_qpos"], values[f"{part}_qvel"] = qpos[self._index[part]], qvel[self._index[part]]
        # the base joints slide along world axes; OmniGibson reports them in the frame of the base
        values["base_qvel"] = np.array([*(rotation[:2, :2].T @ values["base_qvel"][:2]), values["base_qvel"][2]])
        if "joint_qpos" in self._fields:
            self._add_global(values, data, qpos, qvel, effort, rotation)
        return values

    def _add_side(self, values, data, side: str, qpos: np.ndarray, qvel: np.ndarray, rotation: np.ndarray) -> None:
        for part in (f"arm_{side}", f"gripper_{side}"):
            values[f"{part}_qpos"], values[f"{part}_qvel"] = qpos[self._index[part]], qvel[self._index[part]]
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
