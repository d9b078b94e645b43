"""Before an episode the hand rests and the gripper does what `env.libero.idle_gripper` says, without LIBERO."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.edges.starts import TEST_SEEDS, TRAINING_SEEDS, VALIDATION_SEEDS
from scripts.oracles.robosuite_world import RobosuiteEnv


class Scene:
    """Records the actions that it gets."""

    def __init__(self) -> None:
        self.actions: list[np.ndarray] = []

    def set_init_state(self, state: str) -> None:
        assert state == "second"

    def step(self, action: np.ndarray) -> None:
        self.actions.append(action)


def row_of(monkeypatch: pytest.MonkeyPatch, *keys: str) -> RobosuiteEnv:
    row = object.__new__(RobosuiteEnv)
    row._config = load(["env=libero", "policy.kind=cnn", *keys]).env
    row._tasks, row._task, row._env = (0,), 0, Scene()
    row._suite = SimpleNamespace(get_task_init_states=lambda task: ["first", "second"])
    monkeypatch.setattr(row, "_reset_scene", lambda seed: None)
    return row


@pytest.mark.parametrize(("gripper", "steps"), [(-1.0, 10), (0.0, 15)])
def test_the_gripper_while_objects_come_to_rest(gripper: float, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(
        monkeypatch,
        f"env.libero.idle_gripper={gripper}",
        f"env.libero.settle_steps={steps}",
        "env.libero.validation_starts='1:2'",
    )
    row.start(VALIDATION_SEEDS.start + 1)
    np.testing.assert_array_equal(row._env.actions, [[0, 0, 0, 0, 0, 0, gripper]] * steps)


def test_seeds_take_published_starts_of_their_split(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(monkeypatch, "env.libero.test_starts='1:2'")
    row.start(TEST_SEEDS.start)  # the scene accepts the second start only


def test_no_two_splits_share_a_sampled_start(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    row = row_of(monkeypatch, *(f"env.libero.{name}_starts=sampled" for name in ("train", "validation", "test")))
    monkeypatch.setattr(row, "_reset_scene", given.append)
    for number in (0, VALIDATION_SEEDS.start, TEST_SEEDS.start, TRAINING_SEEDS.start):
        row.start(number)
    assert len(set(given)) == 4 and min(given) > 0 and max(given) <= 1 << 31
