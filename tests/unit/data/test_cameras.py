"""Cameras are matched by name, whatever stands before the name and whatever the order."""

import pytest

from rlrun.data.fit import match_cameras, short_name


@pytest.mark.parametrize(
    ("wanted", "there", "order"),
    [
        (["top", "side"], ["pixels.side", "pixels.top"], (1, 0)),
        (["observation.images.top", "observation.images.side"], ["pixels.side", "pixels.top"], (1, 0)),
        (["observation.images.rgb.head"], ["left_wrist", "head"], (1,)),
        (["wrist-left", "base"], ["base", "wrist_left"], (1, 0)),
        (["observation.image"], ["image"], (0,)),
        (["side", "top"], ["side", "top"], (0, 1)),
    ],
)
def test_equal_names_are_one_camera(wanted, there, order):
    match = match_cameras(wanted, there)
    assert match.order == order and match.is_certain and all(match.is_by_name)


def test_what_no_name_fits_goes_by_place_and_is_said():
    match = match_cameras(["camera1", "top"], ["top", "zed_link"])
    assert match.order == (1, 0) and match.is_by_name == (False, True)
    assert match.is_certain  # only one is left on both sides
    assert not match_cameras(["camera1", "camera2"], ["top", "side"]).is_certain
    assert str(match) == "zed_link → camera1 (by place), top → top"


def test_cameras_that_the_policy_does_not_take_are_left_out():
    match = match_cameras(["top"], ["side", "top", "wrist"])
    assert match.order == (1,) and str(match).endswith("left out: side, wrist")


def test_a_mapping_wins_over_names():
    assert match_cameras(["camera1", "camera2"], ["side", "top"], {"camera1": "top", "camera2": "side"}).order == (1, 0)
    with pytest.raises(ValueError, match="no camera wrist among side, top"):
        match_cameras(["camera1"], ["side", "top"], {"camera1": "wrist"})
    with pytest.raises(ValueError, match="no camera camera9 among camera1"):
        match_cameras(["camera1"], ["side", "top"], {"camera9": "top"})
    with pytest.raises(ValueError, match="top would stand for several"):
        match_cameras(["camera1", "top"], ["side", "top"], {"camera1": "top"})


@pytest.mark.parametrize(
    ("wanted", "there", "said"),
    [
        (["camera1"], ["side", "top"], "camera1 has no partner by name; left: side, top"),
        (["top", "side", "wrist"], ["side", "top"], "wrist has no partner by name; left: none"),
        (["top"], [], "top has no partner"),
    ],
)
def test_a_camera_without_a_partner_is_refused(wanted, there, said):
    with pytest.raises(ValueError, match=said):
        match_cameras(wanted, there)


def test_a_name_that_fits_two_cameras_fits_none():
    with pytest.raises(ValueError, match="no partner"):
        match_cameras(["top"], ["pixels.top", "rgb.top"])
    assert match_cameras(["pixels.top"], ["pixels.top", "rgb.top"]).order == (0,)  # the whole name fits one


def test_a_short_name_lacks_what_only_says_that_it_is_a_picture():
    assert [short_name(name) for name in ("observation.images.top", "pixels.top", "image", "observation.image")] == [
        *("top", "top", "image", "image")
    ]
