"""Pictures of every usual form are cameras or refused; they never become the state unnamed."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.envs.gymnasium.observations import ObservationReader, camera_of, may_hold_pixels
from rlrun.envs.gymnasium.spec import GymnasiumConfig
from rlrun.system.errors import RunError


def box(shape: tuple[int, ...], kind: type = np.uint8, low: float = 0, high: float | None = None) -> spaces.Box:
    return spaces.Box(low, (255 if kind is np.uint8 else 1) if high is None else high, shape, kind)


CAMERAS = [
    box((20, 30, 3)),
    box((20, 30, 1)),
    box((3, 20, 30)),
    box((1, 20, 30)),
    box((20, 30)),
    box((20, 30, 3), np.float32),
    box((3, 20, 30), np.float64),
    box((20, 30, 3), np.float32, high=255),
]
REFUSED = [
    *CAMERAS[-3:],  # floats are cameras if they are named
    box((20, 30, 4)),  # RGBA, RGB and depth, or four frames
    box((4, 20, 30)),
    box((2, 20, 30, 3)),
    box((20, 30), high=10),  # a map
    box((20, 30), np.float32),  # a depth image, or a map
    box((20, 30, 1), np.float32),
    box((20, 30, 3), np.float32, low=-1),
    box((20, 30, 3), np.float32, high=np.inf),
    spaces.MultiBinary([20, 30]),
    spaces.Tuple([box((20, 30, 3)), box((3,))]),
]
STATES = [box((7,), np.float32), box((4, 5), np.float32), box((100, 3), np.float32), box((2, 5, 3), np.float32)]


@pytest.mark.parametrize("space", CAMERAS, ids=str)
def test_a_camera(space: spaces.Box) -> None:
    camera = camera_of("image", space)
    assert camera is not None and may_hold_pixels(space)
    dark, bright = np.full(space.shape, space.low.min(), space.dtype), np.full(space.shape, space.high.max())
    assert camera.picture(dark).shape == (20, 30, 3) and camera.picture(dark).dtype == np.uint8
    assert camera.picture(dark).max() == 0 and camera.picture(bright.astype(space.dtype)).min() == 255


@pytest.mark.parametrize("space", REFUSED, ids=str)
def test_what_may_be_a_picture_is_refused(space: spaces.Space) -> None:
    for observed in (space, spaces.Dict({"image": space, "state": box((3,), np.float32)})):
        with pytest.raises(RunError, match="may be a picture") as caught:
            ObservationReader(observed, GymnasiumConfig(), 16)
        assert caught.value.key == "env.gymnasium.state_keys"


def test_a_named_camera_of_floats() -> None:
    observed = spaces.Dict({"image": box((20, 30, 3), np.float32), "state": box((3,), np.float32)})
    reader = ObservationReader(observed, GymnasiumConfig(image_keys=["image"]), 16)
    assert (reader.num_images, reader.num_proprio) == (1, 3)
    picture = reader.images({"image": np.full((20, 30, 3), 0.5, np.float32), "state": np.zeros(3)})
    assert picture.shape == (1, 16, 16, 3) and (picture == 128).all()


@pytest.mark.parametrize("space", STATES, ids=str)
def test_small_arrays_are_the_state(space: spaces.Box) -> None:
    reader = ObservationReader(space, GymnasiumConfig(), 16)
    assert (reader.num_images, reader.num_proprio) == (0, np.prod(space.shape))


def test_numbers_that_are_named_are_the_state() -> None:
    observed = spaces.Dict({"heights": box((20, 30), np.float32), "image": box((20, 30, 3))})
    reader = ObservationReader(observed, GymnasiumConfig(state_keys=["heights"]), 16)
    assert (reader.num_images, reader.num_proprio) == (1, 600)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Sequence(box((3,))),
        spaces.Graph(box((3,)), None),
        spaces.OneOf([box((3,)), spaces.Discrete(2)]),
        spaces.Tuple([spaces.Sequence(box((3,))), box((3,))]),
        spaces.Tuple([spaces.Text(5), box((3,))]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_without_a_fixed_size_are_refused(space: spaces.Space) -> None:
    observed = spaces.Dict({"points": space, "state": box((3,), np.float32)})
    with pytest.raises(RunError, match="'points' has no fixed number of numbers"):
        ObservationReader(observed, GymnasiumConfig(), 16)
    assert ObservationReader(observed, GymnasiumConfig(state_keys=["state"]), 16).num_proprio == 3


@pytest.mark.parametrize(
    ("seen", "message"),
    [(np.zeros((20, 30, 3), np.float32), "float32"), (np.zeros((20, 30, 5), np.uint8), r"\[20, 30, 5\]")],
)
def test_a_picture_unlike_its_space_is_told(seen: np.ndarray, message: str) -> None:
    camera = camera_of("image", box((20, 30, 3)))
    assert camera is not None
    with pytest.raises(ValueError, match=message):
        camera.picture(seen)


def test_nan_in_a_float_picture_is_told() -> None:
    camera = camera_of("image", box((20, 30, 3), np.float32))
    assert camera is not None
    with pytest.raises(ValueError, match="NaN"):
        camera.picture(np.full((20, 30, 3), np.nan, np.float32))


def test_the_space_of_gymnasium_s_own_environments_is_read() -> None:
    assert ObservationReader(gymnasium.make("CartPole-v1").observation_space, GymnasiumConfig(), 16).num_proprio == 4
