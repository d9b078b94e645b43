"""The spaces of a simulator: limits as simulators take them, cameras that are shown, and simulators that differ."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from rlrun.edges.spaces import Spaces, check_equal_spaces
from rlrun.system.errors import RunError

SPACES = Spaces(2, None, (-0.1, -np.inf), (0.1, 1.0), 3, 2, cameras=("front", "wrist"), action_names=("x", "y"))


def test_limits_are_those_of_float32() -> None:
    low, high = SPACES.limits
    assert low.dtype == high.dtype == np.float32 and low[1] == -np.inf
    assert SPACES.action_low == tuple(low.tolist()) and SPACES.action_low[0] != -0.1
    assert pickle.loads(pickle.dumps(SPACES)) == SPACES == dataclasses.replace(SPACES)


def test_cameras_that_are_shown() -> None:
    assert SPACES.showing(None) is SPACES
    shown = SPACES.showing((1,))
    assert (shown.num_images, shown.cameras) == (1, ("wrist",))
    assert dataclasses.replace(SPACES, cameras=()).showing((1, 0)).cameras == ()


def test_peers_have_the_same_spaces() -> None:
    check_equal_spaces({0: SPACES, 1: dataclasses.replace(SPACES)})
    with pytest.raises(RunError, match="env/1"):
        check_equal_spaces({0: SPACES, 1: SPACES.showing((0,)), 2: SPACES})
