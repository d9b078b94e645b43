"""Small environments that the tests of `envs` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rlrun.config.schema import EnvConfig
from rlrun.envs.embedded.mujoco_env import MujocoVectorEnv

WHOLE_BODY = ["base", "trunk", "arm_left", "gripper_left", "arm_right", "gripper_right"]


@pytest.fixture
def make() -> Iterator[Callable[[EnvConfig, int], MujocoVectorEnv]]:
    """Makes environments and closes them after the test."""
    made: list[MujocoVectorEnv] = []

    def _make(config: EnvConfig, num_envs: int = 1) -> MujocoVectorEnv:
        made.append(MujocoVectorEnv(config, num_envs))
        return made[-1]

    yield _make
    for env in made:
        env.close()
