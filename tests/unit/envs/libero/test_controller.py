"""The controller's torques are robosuite's, for inputs recorded in three of LIBERO's scenes (scripts/oracles)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlrun.envs.libero import controller
from tests.numerics import norm_error

RECORDED = np.load(Path(__file__).parents[3] / "golden" / "libero_torques.npz")
KP, KD = 150.0, 2 * np.sqrt(150.0)


def torques(chosen: slice) -> np.ndarray:
    part = {name: RECORDED[name][chosen] for name in RECORDED.files}
    turn = controller._rotation_error(part["aim_rotation"], part["rotation"])
    error = np.concatenate([part["aim"] - part["hand"], turn], axis=1)
    wanted = KP * error - KD * (part["jacobian"] @ part["velocities"][..., None])[..., 0]
    to_rest = part["rest"] - part["joints"]
    return controller._torques(part["inertia"], part["jacobian"], wanted, to_rest, part["velocities"]) + part["bias"]


def test_torques_are_those_of_robosuite() -> None:
    assert norm_error(torques(slice(None)), RECORDED["torques"]) < 1e-10


def test_a_row_does_not_depend_on_the_others() -> None:
    alone = np.concatenate([torques(slice(i, i + 1)) for i in range(8)])
    assert np.array_equal(alone, torques(slice(0, 8)))


def test_a_hand_that_cannot_move_in_a_direction_gets_finite_torques() -> None:
    jacobian = RECORDED["jacobian"][:1].copy()
    jacobian[:, 5] = 0.0  # no joint turns it about z
    found = controller._torques(RECORDED["inertia"][:1], jacobian, np.ones((1, 6)), np.zeros((1, 7)), np.zeros((1, 7)))
    assert np.isfinite(found).all() and np.abs(found).max() < 1e4


@pytest.mark.parametrize("turn", [[0.5, 0.0, 0.0], [0.1, -0.2, 0.3], [0.0, 0.0, 1e-9]])
def test_the_matrix_of_a_turn_is_a_rotation_to_the_precision_of_its_quaternion(turn: list[float]) -> None:
    found = controller._matrix(np.array(turn))
    angle = np.linalg.norm(turn)
    assert norm_error(found @ found.T, np.eye(3)) < 1e-6
    assert abs(np.trace(found) - (1 + 2 * np.cos(angle))) < 1e-6
    assert np.abs(found @ np.array(turn) - turn).max() < 1e-6
