"""Conversion between the evaluator's observations and the policy's."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.config.schema import EnvConfig
from rlrun.envs import r1pro
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.envs.r1pro_keys import ProprioLayout
from rlrun.serving.robot import PROPRIO, RobotWire, camera_key
from rlrun.serving.wire import WireError

CAMERA = "zed_link"


def observation(broken: str) -> dict[str, np.ndarray]:
    """Return an observation of the evaluator of 2025, with NaN in one field."""
    felt = np.ones(256, np.float32)
    felt[r1pro.PROPRIO_256[broken]] = np.nan
    return {PROPRIO: felt, camera_key(CAMERA): np.zeros((32, 32, 4), np.uint8)}


def wire(proprio: ProprioLayout) -> RobotWire:
    robot = EmbeddedConfig(controlled=["base"], cameras=[CAMERA], proprio=proprio)
    return RobotWire(EnvConfig(image_size=32, sections={"embedded": robot}))


def test_values_that_the_policy_does_not_read_may_be_anything() -> None:
    """Simulators report efforts that are not finite; a policy of 61 values reads none."""
    request = observation("joint_qeffort")
    assert np.isfinite(wire(ProprioLayout.local_61).frames(request).proprio).all()
    assert np.isfinite(wire(ProprioLayout.local_61).held_pose(request)).all()
    with pytest.raises(WireError, match="NaN"):
        wire(ProprioLayout.full_256).frames(request)


def test_values_that_the_policy_or_the_robot_needs_must_be_finite() -> None:
    with pytest.raises(WireError, match="NaN"):
        wire(ProprioLayout.local_61).frames(observation("arm_left_qvel"))
    with pytest.raises(WireError, match="NaN"):
        wire(ProprioLayout.local_61).held_pose(observation("trunk_qpos"))
