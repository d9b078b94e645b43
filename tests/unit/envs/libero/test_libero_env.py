"""What needs no LIBERO: the conversion of its quaternions."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.envs.libero.libero_env import _axis_angle, _check_renderer
from rlrun.system.errors import RunError


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


def test_the_version_that_returns_garbage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _check_renderer()
    monkeypatch.setattr("mujoco.__version__", "3.17.0")
    with pytest.raises(RunError, match=r"(?s)3\.17\.0.*mujoco==3\.3\.7"):
        _check_renderer()
