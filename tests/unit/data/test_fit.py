"""A data set is compared with the world before anything is trained: each kind of misfit, and what fits."""

import dataclasses

import numpy as np
import pytest

from rlrun.data.fit import World, compare, match_dataset_cameras
from rlrun.data.lerobot.reader import DatasetInfo
from rlrun.edges.spaces import PolicySpaces, Spaces

DATA = DatasetInfo(
    cameras=("top", "side"),
    camera_sizes=((64, 64), (64, 64)),
    num_proprio=3,
    num_actions=2,
    fps=10.0,
    action_names=("x", "y"),
    actions=np.linspace([-1, -1], [1, 1], 50, dtype=np.float32),
    sentences=("push the cube",),
)
SPACES = Spaces(
    *(2, None, (-1.0, -1.0), (1.0, 1.0), 3, 2),
    cameras=("pixels.side", "pixels.top"),
    action_names=("x", "y"),
    control_hz=10.0,
    instructions=("push the cube",),
)


def fit(data: dict | None = None, world: dict | None = None):
    found = World(dataclasses.replace(SPACES, **(world or {})), image_size=64)
    return compare(dataclasses.replace(DATA, **(data or {})), found)


def test_what_fits_is_taken_in_the_worlds_order_and_shown_as_a_table():
    found = fit()
    assert not found.refusals and not found.warnings
    assert found.cameras == ("side", "top")
    assert found.notes == ["cameras, data set → world: side → pixels.side, top → pixels.top"]
    table = found.lines()
    assert table[0].split() == ["data", "set", "world", "verdict"]
    assert table[1].split() == ["cameras", "top", "64x64,", "side", "64x64", "2:", "pixels.side,", "pixels.top"]


@pytest.mark.parametrize(
    ("data", "world", "said"),
    [
        ({"cameras": ("front", "wrist")}, {}, "A swap of two cameras would not be noticed"),
        ({"cameras": ("top",), "camera_sizes": ((64, 64),)}, {}, "pixels.side has no partner"),
        ({"num_proprio": 7}, {}, "The data set has 7 numbers of state, the world 3"),
        ({"num_actions": 7, "actions": None, "action_names": ()}, {}, "7 numbers of actions, the world 2"),
        ({"action_names": ("y", "x")}, {}, "x is number 1 of the data set's actions and number 0 of the world's"),
        ({"actions": 1000 * DATA.actions}, {}, "lie outside of -1 to 1, up to -1000"),
        ({"actions": np.where(np.arange(50)[:, None] == 7, 500, DATA.actions)}, {}, "2 % of the data set's x"),
        ({"fps": 30.0}, {}, "The data set has 30 frames a second, the world 10 control steps"),
    ],
)
def test_what_cannot_be_right_is_refused(data, world, said):
    found = fit(data, world)
    assert len(found.refusals) == 1 and said in str(found.refusals[0])
    with pytest.raises(type(found.refusals[0])):
        found.require()


def test_the_remedy_for_another_rate_keeps_the_worlds():
    (refusal,) = fit({"fps": 10.0}, {"control_hz": 20.0}).refusals
    assert refusal.key == "demos.fps" and refusal.remedy.startswith("Set demos.fps=20 if")
    assert refusal.remedy.index("resample") < refusal.remedy.index("env.action_hz=10")


@pytest.mark.parametrize(
    ("data", "world", "said"),
    [
        ({"action_names": ("left_x", "left_y")}, {}, "left_x → x, left_y → y"),
        ({"fps": 30.0}, {"is_hz_nominal": True}, "another speed"),
        ({"sentences": ("open the door",)}, {}, "'push the cube', which no episode of the data set has"),
        ({"sentences": ("push the cube", "")}, {}, "have no sentence"),
        ({"camera_sizes": ((48, 96), (64, 64))}, {}, "top (48 x 96) are not square"),
        ({"actions": np.where(np.arange(50)[:, None] < 2, 1.5, DATA.actions)}, {}, "4 % of the data set's x"),
    ],
)
def test_what_may_be_meant_is_told(data, world, said):
    found = fit(data, world)
    assert not found.refusals and len(found.warnings) == 1 and said in found.warnings[0]


@pytest.mark.parametrize(
    ("data", "world"),
    [
        ({"fps": 29.97}, {"control_hz": 30.0}),
        ({}, {"control_hz": None}),
        ({"action_names": ("action/0", "action/1")}, {}),
        ({"action_names": ("motor_0", "motor_1")}, {"action_names": ("joint.a", "joint.b")}),
        ({"actions": 1000 * DATA.actions}, {"action_low": (-np.inf,) * 2, "action_high": (np.inf,) * 2}),
        ({"actions": 1.0001 * DATA.actions}, {}),
    ],
)
def test_what_says_nothing_against_it_passes_in_silence(data, world):
    found = fit(data, world)
    assert not found.refusals and not found.warnings


def test_a_world_without_pictures_needs_none_of_the_data_set():
    world = World(dataclasses.replace(SPACES, num_images=0, cameras=()), 64)
    assert match_dataset_cameras(DATA, world) is None and compare(DATA, world).cameras == ()


def test_the_users_own_order_of_cameras_needs_no_names():
    found = fit({"cameras": ("a", "b"), "is_ordered": True})
    assert not found.refusals and found.cameras == ("a", "b")


def test_the_policy_has_a_column():
    table = compare(None, World(SPACES, 64), PolicySpaces(2, 3, ("top", "side"))).lines()
    assert table[0].split() == ["world", "policy"] and table[1].endswith("top, side") and table[2].endswith("3")
