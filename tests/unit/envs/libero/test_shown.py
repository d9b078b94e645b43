"""What a policy is shown under each convention: pictures, state, sentence."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.edges.frames import Frames
from rlrun.envs.libero.shown import as_shown, cropped, euler, sentence, short_axis_angle
from rlrun.envs.libero.spec import Colours, Sentence, StateForm, SuiteConfig, Turn

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 1, 8, 8, 3), np.uint8)
STATE = np.array([[0.1, 0.2, 0.3, 3.3, 0.1, -0.2, 0.02, -0.03]] * 2, np.float32)
FRAMES = Frames(IMAGES, STATE, ("turn on the stove", "open the drawer"))


def test_the_defaults_change_nothing_and_copy_nothing() -> None:
    assert as_shown(FRAMES, SuiteConfig()) is FRAMES


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (Turn.raw, IMAGES[:, :, ::-1, ::-1]),
        (Turn.upside_down, IMAGES[:, :, ::-1]),
        (Turn.mirrored, IMAGES[:, :, :, ::-1]),
    ],
)
def test_pictures_are_turned(turn: Turn, expected: np.ndarray) -> None:
    assert np.array_equal(as_shown(FRAMES, SuiteConfig(turn=turn)).images, expected)


def test_colours_are_exchanged() -> None:
    assert np.array_equal(as_shown(FRAMES, SuiteConfig(colours=Colours.bgr)).images, IMAGES[..., ::-1])


def test_a_crop_is_the_middle_and_a_ramp_stays_a_ramp() -> None:
    ramp = np.broadcast_to(np.arange(0, 200, 4, dtype=np.uint8)[None, :, None], (50, 50, 3))
    middle = cropped(ramp[None], 0.81)[0]
    assert middle.shape == ramp.shape and middle.dtype == np.uint8
    steps = np.diff(middle[0, :, 0].astype(int))
    assert abs(steps.mean() - 4 * 0.9) < 0.05 and abs(float(middle.mean()) - float(ramp.mean())) < 1
    assert np.array_equal(cropped(ramp[None], 1.0)[0], ramp)


def test_rotations_of_the_state_are_the_same_rotation() -> None:
    short = short_axis_angle(STATE[:, 3:6])
    assert np.linalg.norm(short[0]) <= np.pi and np.linalg.norm(STATE[0, 3:6]) > np.pi
    assert np.allclose(matrix(short[0]), matrix(STATE[0, 3:6]), atol=1e-5)
    roll, pitch, yaw = euler(STATE[:, 3:6])[0]
    turns = [matrix(np.array(axis)) for axis in ([roll, 0, 0], [0, pitch, 0], [0, 0, yaw])]
    assert np.allclose(turns[2] @ turns[1] @ turns[0], matrix(STATE[0, 3:6]), atol=1e-5)


def matrix(rotation: np.ndarray) -> np.ndarray:
    """Rodrigues' formula."""
    angle = float(np.linalg.norm(rotation))
    if angle == 0.0:
        return np.eye(3)
    x, y, z = rotation / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (StateForm.one_finger, [0.1, 0.2, 0.3, 3.3, 0.1, -0.2, 0.02, 0.0]),
        (StateForm.fingers_first, [0.02, -0.03, 0.1, 0.2, 0.3, 3.3, 0.1, -0.2]),
        (StateForm.zeros, [0.0] * 8),
    ],
)
def test_the_state_has_other_numbers(form: StateForm, expected: list[float]) -> None:
    assert np.allclose(as_shown(FRAMES, SuiteConfig(state=form)).proprio[1], expected)
    assert np.array_equal(FRAMES.proprio, STATE), "what the world has stays as it is"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (Sentence.published, "turn on the stove"),
        (Sentence.capital, "Turn on the stove."),
        (Sentence.upper, "TURN ON THE STOVE"),
        (Sentence.underscores, "turn_on_the_stove"),
    ],
)
def test_the_sentence_has_a_form(form: Sentence, expected: str) -> None:
    assert sentence("turn on the stove", form) == expected
