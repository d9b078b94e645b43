"""The constants of OmniGibson's R1Pro, pinned."""

from __future__ import annotations

import numpy as np

from rlrun.envs import r1pro


def test_action_slices() -> None:
    starts = {name: (where.start, where.stop) for name, where in r1pro.ACTION_PARTS.items()}
    assert starts == {
        "base": (0, 3),
        "trunk": (3, 7),
        "arm_left": (7, 14),
        "gripper_left": (14, 15),
        "arm_right": (15, 22),
        "gripper_right": (22, 23),
    }
    assert len(r1pro.action_names()) == r1pro.NUM_ACTIONS == 23
    assert r1pro.action_names(("gripper_right", "arm_right"))[-2:] == ("arm_right/6", "gripper_right/0")


def test_limits() -> None:
    low, high = r1pro.action_limits()
    assert (low < high).all()
    assert low[r1pro.ACTION_PARTS["base"]].tolist() == [-1, -1, -1]
    np.testing.assert_allclose([low[15], high[15]], [-4.4506, 1.3090], rtol=1e-6)
    np.testing.assert_allclose([low[8], high[8]], [-0.1745, 3.1416], rtol=1e-6)  # left shoulder mirrors the right
    np.testing.assert_allclose([low[16], high[16]], [-3.1416, 0.1745], rtol=1e-6)


def test_joint_order() -> None:
    names = r1pro.JOINT_NAMES
    assert len(names) == 28
    assert names[6:10] == tuple(f"torso_joint{i}" for i in range(1, 5))
    assert names[10:24:2] == r1pro.joints_of("arm_left")
    assert names[11:24:2] == r1pro.joints_of("arm_right")
    assert names[24:26] == r1pro.joints_of("gripper_left")
    assert [r1pro.RESET_POSE[name] for name in names[6:10]] == [1.025, -1.45, -0.47, 0.0]


def test_proprioception_of_2025() -> None:
    layout = r1pro.PROPRIO_256
    starts = {
        "joint_qpos": 0,
        "joint_qpos_sin": 28,
        "joint_qpos_cos": 56,
        "joint_qvel": 84,
        "joint_qeffort": 112,
        "robot_pos": 140,
        "robot_ori_cos": 143,
        "robot_ori_sin": 146,
        "robot_2d_ori": 149,
        "robot_lin_vel": 152,
        "robot_ang_vel": 155,
        "arm_left_qpos": 158,
        "arm_left_qvel": 179,
        "eef_left_pos": 186,
        "eef_left_quat": 189,
        "gripper_left_qpos": 193,
        "gripper_left_qvel": 195,
        "arm_right_qpos": 197,
        "arm_right_qvel": 218,
        "eef_right_pos": 225,
        "eef_right_quat": 228,
        "gripper_right_qpos": 232,
        "gripper_right_qvel": 234,
        "trunk_qpos": 236,
        "trunk_qvel": 240,
        "base_qpos": 244,
        "base_qvel": 253,
    }
    assert {name: layout[name].start for name in starts} == starts
    assert max(where.stop for where in layout.values()) == 256


def test_proprioception_of_2026_has_no_global_pose() -> None:
    layout = r1pro.PROPRIO_61
    assert list(layout)[:3] == ["base_qvel", "arm_left_qpos", "arm_left_qvel"]
    assert max(where.stop for where in layout.values()) == 61
    assert not any(name.startswith(("robot_", "joint_", "base_qpos")) for name in layout)
