"""A row that breaks alone is void, and says at which control step of which number."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.edges.spaces import Spaces
from rlrun.envs.plausibility import NUM_EQUAL, place_of
from rlrun.envs.rows import RowsEnv, SingleEnv, Step
from rlrun.envs.vector_env import SimulatorFault
from rlrun.system.errors import RunError

B, C = 3, 2
SPACES = Spaces(1, None, (-1.0,), (1.0,), 2, 0, action_names=("x",))


class Counting(SingleEnv):
    """Returns NaN, or raises, at a chosen control step of episodes with odd seeds."""

    def __init__(self, fault: str, at: int):
        self._fault, self._at = fault, at

    @property
    def instruction(self) -> str:
        return "count"

    def start(self, seed: int) -> None:
        self._number, self._is_odd = 0, bool(seed % 2)

    def step(self, action: np.ndarray) -> Step:
        self._number += 1
        is_now = self._is_odd and self._number == self._at
        if is_now and self._fault == "raises":
            raise OSError("lost")
        return Step(float("nan") if is_now and self._fault == "reward" else 0.0, False, False, False)

    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        is_now = self._is_odd and self._number >= self._at and self._fault == "state"
        return np.zeros((0, 8, 8, 3), np.uint8), np.array([0.0, np.inf if is_now else 1.0], np.float32)

    def render(self, height: int, width: int) -> np.ndarray:
        return np.zeros((height, width, 3), np.uint8)

    def close(self) -> None:
        pass


def env(fault: str, at: int = 3) -> RowsEnv:
    return RowsEnv(lambda: Counting(fault, at), B, SPACES, 8, 100, lambda: None)


FAULTS = {
    "reward": "SimulatorFault: reward is nan at control step 3",
    "state": "SimulatorFault: proprioception 1 is inf at control step 4",  # seen at the end of the chunk
    "raises": "OSError: lost at control step 3",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_row_is_void_and_says_why(fault: str) -> None:
    rows = env(fault)
    rows.reset(np.arange(B), np.array([2, 5, 4]))
    actions = np.zeros((B, C, 1), np.float32)
    assert not rows.step_chunk(actions).infra_fault.any()
    result = rows.step_chunk(actions)
    assert result.infra_fault.tolist() == [False, True, False]
    text = result.infos[1]["fault"]
    assert text.startswith(FAULTS[fault]) or (fault == "raises" and "OSError: lost" in text)
    assert not result.step_valid[1].any() and np.isfinite(result.frames.proprio).all()


def test_the_same_bug_in_episode_after_episode_ends_the_run() -> None:
    """At the third chunk, long after the first: no restart mends it."""
    rows, actions, num_faults = env("reward", at=5), np.zeros((B, C, 1), np.float32), 0
    with pytest.raises(RunError, match=f"breaks in the same way again and again: {NUM_EQUAL} equal faults"):
        for _ in range(10):
            rows.reset(np.arange(B), np.array([2, 5, 4]))
            for _ in range(3):
                num_faults += rows.step_chunk(actions).infra_fault.sum()
    assert num_faults == NUM_EQUAL - 1


def test_the_place_of_a_fault_in_foreign_code() -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("contact")
    assert place_of(caught.value).startswith(f" ({__file__}:")
    assert place_of(SimulatorFault("reward is nan")) == ""
