"""What needs no LIBERO: the conversion of its quaternions."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.envs.libero_env import _axis_angle


@pytest.mark.parametrize(
    ("quaternion", "expected"),
    [
        ([0, 0, 0, 1], [0, 0, 0]),
        ([0, 0, 0, 1 + 1e-12], [0, 0, 0]),
        ([0, 0, np.sin(np.pi / 4), np.cos(np.pi / 4)], [0, 0, np.pi / 2]),
        ([1, 0, 0, 0], [np.pi, 0, 0]),
        ([0, np.sin(0.1), 0, np.cos(0.1)], [0, 0.2, 0]),
    ],
)
def test_axis_angle(quaternion: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(_axis_angle(np.array(quaternion, float)), expected, atol=1e-9)
