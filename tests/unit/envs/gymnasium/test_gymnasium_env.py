"""Gymnasium's environments: what becomes of spaces, time limits and words for success."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.config.schema import EnvConfig
from rlrun.envs.gymnasium.spec import GymnasiumConfig
from rlrun.envs.make import make_env
from rlrun.system.errors import RunError

ONE = np.zeros(1, int)


class Toy(gymnasium.Env):
    """Any spaces; says what it is told to say at every step."""

    def __init__(self, observation, action, info=None, render_mode=None):
        self.observation_space, self.action_space, self.info = observation, action, info or {}
        self.render_mode = render_mode
        self.taken = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.taken.append(action)
        return self.observation_space.sample(), 1.0, False, False, self.info

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


BOX = spaces.Box(-1, 1, (3,))


@pytest.fixture(autouse=True)
def toy():
    gymnasium.register("Toy-v0", Toy, max_episode_steps=3, reward_threshold=5.0)
    yield
    del gymnasium.registry["Toy-v0"]


def made(observation=BOX, action=BOX, num_steps: int = 100, wanted: dict | None = None, **kwargs):
    settings = GymnasiumConfig(
        id="Toy-v0", kwargs={"observation": observation, "action": action, **kwargs}, **(wanted or {})
    )
    return make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": settings}, max_control_steps=num_steps), 1)


def stepped(env, num_steps: int = 4, value: float = 0.3):
    env.reset(ONE, ONE + 7)
    return env.step_chunk(np.full((1, num_steps, env.num_actions), value, np.float32))


def test_dictionaries_are_flattened() -> None:
    env = made(spaces.Dict({"where": BOX, "which": spaces.Discrete(4)}))
    assert (env.num_proprio, env.num_images) == (7, 0)
    assert env.reset(ONE, ONE).proprio.shape == (1, 7)


def test_pictures_become_the_camera() -> None:
    env = made(spaces.Box(0, 255, (20, 30, 3), np.uint8))
    frames = env.reset(ONE, ONE)
    assert (env.num_proprio, env.num_images) == (0, 1) and frames.images.shape == (1, 1, 64, 64, 3)
    assert frames.images.std() > 10


def test_discrete_actions_are_rounded_and_shifted() -> None:
    env = made(action=spaces.Discrete(3, start=5))
    assert env.spaces.num_choices == 3 and (env.action_low, env.action_high) == (0.0, 2.0)
    stepped(env, 1, 1.6)
    assert env._rows[0].env._env.unwrapped.taken == [7]


def test_actions_keep_their_shape_and_type() -> None:
    env = made(action=spaces.Box(-2, 2, (2, 3), np.float64))
    stepped(env, 1, 9.0)
    (taken,) = env._rows[0].env._env.unwrapped.taken
    assert taken.shape == (2, 3) and taken.dtype == np.float64 and (taken == 2).all()


def test_the_time_limit_is_ours() -> None:
    """Registered with 3 control steps."""
    assert not stepped(made(num_steps=5), 4).truncated.any()
    result = stepped(made(num_steps=5), 6)
    assert result.truncated.all() and result.step_valid.sum() == 5


@pytest.mark.parametrize(
    ("kwargs", "wanted", "is_success"),
    [
        ({}, {}, False),  # a return of 4, registered: 5
        ({}, {"success_return": 4.0}, True),
        ({"info": {"success": 1.0}}, {}, True),
        ({"info": {"is_success": np.bool_(False)}}, {"success_return": 1.0}, False),
    ],
)
def test_success(kwargs: dict, wanted: dict, is_success: bool) -> None:
    result = stepped(made(wanted=wanted, **kwargs))
    assert result.success.tolist() == [is_success] and result.infos[0]["done"]["success"] is is_success


@pytest.mark.parametrize("action", [spaces.MultiBinary(3), spaces.Discrete(300)])
def test_other_actions_are_refused(action: spaces.Space) -> None:
    with pytest.raises(RunError) as caught:
        made(action=action)
    assert caught.value.key == "env.gymnasium.id" and caught.value.remedy


def test_an_unknown_id_is_refused_with_its_likes() -> None:
    config = EnvConfig(simulator="gymnasium", sections={"gymnasium": GymnasiumConfig(id="HalfCheeta-v5")})
    with pytest.raises(RunError, match="HalfCheetah"):
        make_env(config, 1)
