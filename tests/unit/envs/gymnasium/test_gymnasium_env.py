"""Gymnasium's environments: what becomes of spaces, time limits and words for success."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.config.schema import EnvConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.envs.gymnasium.spec import GymnasiumConfig, Vectorization
from rlrun.envs.make import make_env
from rlrun.system.errors import RunError
from rlrun.testing.simulators import NUM_ENVS, EnvUnderTest, broken_promises, contract_config

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
    return env.step_chunk(np.full((1, num_steps, env.spaces.num_actions), value, np.float32))


def test_dictionaries_are_flattened() -> None:
    env = made(spaces.Dict({"where": BOX, "which": spaces.Discrete(4)}))
    assert (env.spaces.num_proprio, env.spaces.num_images) == (7, 0)
    assert env.reset(ONE, ONE).proprio.shape == (1, 7)


def test_pictures_become_the_camera() -> None:
    env = made(spaces.Box(0, 255, (20, 30, 3), np.uint8))
    frames = env.reset(ONE, ONE)
    assert (env.spaces.num_proprio, env.spaces.num_images) == (0, 1) and frames.images.shape == (1, 1, 64, 64, 3)
    assert frames.images.std() > 10


def test_discrete_actions_are_rounded_and_shifted() -> None:
    env = made(action=spaces.Discrete(3, start=5))
    assert env.spaces.num_choices == 3 and env.spaces.limits == ([0.0], [2.0])
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


PICTURE = spaces.Box(0, 255, (20, 30, 3), np.uint8)
ROBOT = spaces.Dict({"image": PICTURE, "state": BOX, "task": spaces.Text(12, charset="abc ")})


def test_a_dictionary_feeds_a_vla() -> None:
    env = made(ROBOT)
    frames = env.reset(ONE, ONE)
    assert (env.spaces.num_images, env.spaces.num_proprio) == (1, 3)
    assert frames.images.std() > 10 and set(frames.instructions[0]) <= set("abc ")
    assert env._rows[0].env._reader.describe() == "image -> camera, state -> proprioception, task -> instruction"


def test_named_keys_win_over_the_guess() -> None:
    nested = spaces.Dict({"pixels": spaces.Dict({"top": PICTURE, "hand": PICTURE}), "agent_pos": BOX, "speed": BOX})
    env = made(nested, wanted={"image_keys": ["pixels.hand"], "state_keys": ["speed"], "instruction": "go"})
    assert (env.spaces.num_images, env.spaces.num_proprio) == (1, 3) and env.reset(ONE, ONE).instructions == ("go",)


@pytest.mark.parametrize(
    ("observation", "wanted", "key"),
    [
        (spaces.Dict({"image": spaces.Box(0, 255, (4, 20, 30), np.uint8)}), {}, "state_keys"),  # a stack of frames
        (spaces.Tuple([PICTURE, BOX]), {}, "state_keys"),
        (ROBOT, {"state_keys": ["image"]}, "state_keys"),
        (ROBOT, {"image_keys": ["state"]}, "image_keys"),
        (ROBOT, {"instruction_key": "state"}, "instruction_key"),
    ],
)
def test_no_picture_becomes_numbers(observation: spaces.Space, wanted: dict, key: str) -> None:
    with pytest.raises(RunError) as caught:
        made(observation, wanted=wanted)
    assert caught.value.key == f"env.gymnasium.{key}"


class Counter(gymnasium.Env):
    """Counts from its seed on; ends at the third step if its seed is odd."""

    observation_space, action_space = spaces.Dict({"agent_pos": spaces.Box(-9e9, 9e9, (1,))}), spaces.Box(-1, 1, (2,))
    task_description = "count"

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.value, self.steps, self.is_short = 100.0 * (seed or 0), 0, bool(seed and seed % 2)
        return self._seen(), {}

    def _seen(self):
        return {"agent_pos": np.array([self.value], np.float32)}

    def step(self, action):
        self.value, self.steps = self.value + 1, self.steps + 1
        is_over = self.is_short and self.steps == 3
        return self._seen(), 1.0, is_over, False, {"is_success": is_over}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


MODES = list(gymnasium.vector.AutoresetMode)


def make_env_like_lerobot(n_envs: int = 1, use_async_envs: bool = False, cfg: dict | None = None):
    """The documented shape: suite -> task -> vector environment."""
    kind = gymnasium.vector.AsyncVectorEnv if use_async_envs else gymnasium.vector.SyncVectorEnv
    mode = MODES[(cfg or {}).get("mode", 0)]
    return {
        "counting": {task: kind([Counter] * n_envs, autoreset_mode=mode) for task in range((cfg or {}).get("tasks", 1))}
    }


def lerobot(num_envs: int, **wanted):
    own = GymnasiumConfig(maker=f"{__name__}:make_env_like_lerobot", **wanted)
    return make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, max_control_steps=6), num_envs)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or sys.modules[Counter.__module__])


@pytest.mark.parametrize("mode", range(len(MODES)))
def test_a_vector_environment_as_it_is(mode: int) -> None:
    """Its rows end apart, show the last frame of their episode, and are reset apart."""
    env = lerobot(3, kwargs={"mode": mode})
    frames = env.reset(np.arange(3), np.array([2, 3, 4]))
    assert frames.proprio.ravel().tolist() == [200.0, 300.0, 400.0] and frames.instructions == ("count",) * 3
    result = env.step_chunk(np.zeros((3, 4, 2), np.float32))
    assert result.frames.proprio.ravel().tolist() == [204.0, 303.0, 404.0]
    assert result.terminated.tolist() == result.success.tolist() == [False, True, False]
    assert result.step_valid.sum(1).tolist() == [4, 3, 4] == result.rewards.sum(1).tolist()
    assert env.reset(np.array([1]), np.array([6])).proprio.tolist() == [[600.0]]
    later = env.step_chunk(np.zeros((3, 4, 2), np.float32))
    assert later.frames.proprio.ravel().tolist() == [206.0, 604.0, 406.0]  # the limit is six steps
    assert later.truncated.tolist() == [True, False, True]
    env.reset(np.arange(3), np.array([2, 4, 6]))
    only = env.step_chunk(np.zeros((3, 4, 2), np.float32), active=np.array([True, False, False]))
    assert only.step_valid.sum(1).tolist() == [4, 0, 0] and not only.frames.proprio[1:].any()
    with pytest.raises(RuntimeError, match="reset"):  # what was left out has ended
        env.step_chunk(np.zeros((3, 4, 2), np.float32))
    env.close()


def test_a_maker_with_several_tasks_needs_one_named() -> None:
    with pytest.raises(RunError, match="makes 2 environments"):
        lerobot(1, kwargs={"tasks": 2})
    lerobot(1, kwargs={"tasks": 2}, maker_task="counting/1").close()


@pytest.mark.parametrize("mode", ["sync", "async_"])
def test_make_vec(mode: str) -> None:
    own = GymnasiumConfig(id="CartPole-v1", vectorization=Vectorization[mode])
    env = make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}), 2)
    single = make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": GymnasiumConfig(id="CartPole-v1")}), 2)
    rows, seeds = np.arange(2), np.array([5, 6])
    assert np.array_equal(env.reset(rows, seeds).proprio, single.reset(rows, seeds).proprio)
    actions = np.ones((2, 3, 1), np.float32)
    assert np.array_equal(env.step_chunk(actions).frames.proprio, single.step_chunk(actions).frames.proprio)
    env.close()


def test_a_vector_environment_without_masks_is_refused() -> None:
    own = GymnasiumConfig(id="CartPole-v1", vectorization=Vectorization.vector_entry_point)
    with pytest.raises(RunError, match="cannot reset single rows"):
        make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}), 2)


def test_a_vector_environment_keeps_the_contract() -> None:
    own = GymnasiumConfig(id="Pendulum-v1", vectorization=Vectorization.sync)
    config = contract_config(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}))
    subject = EnvUnderTest(config, lambda: make_env(config, NUM_ENVS), make_env(config, NUM_ENVS))
    assert list(broken_promises(subject)) == []


@pytest.mark.parametrize("vectorization", [None, Vectorization.sync])
def test_a_refusal_is_no_infra_fault(vectorization, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of breakpoint() where there is no terminal."""

    def refuse(self, action):
        raise RunError("breakpoint() was called in env/0")

    monkeypatch.setattr(Toy, "step", refuse)
    env = made(wanted={"vectorization": vectorization})
    with pytest.raises(RunError, match=r"breakpoint\(\)"):
        stepped(env)


def test_only_a_fault_of_several_rows_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row that breaks once is void; equal faults of its first chunk again and again end the run."""

    def broken(self, action):
        raise ValueError("no such joint")

    monkeypatch.setattr(Toy, "step", broken)
    env = made()
    assert stepped(env).infra_fault.all()
    with pytest.raises(RunError, match="2 equal faults") as caught:
        stepped(env)
    assert "ValueError: no such joint" in str(caught.value.cause)


def test_names_and_rate_are_the_environments_own():
    camera = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    observation = spaces.Dict({"pixels": spaces.Dict({"top": camera, "side": camera}), "agent_pos": BOX})
    found = made(observation, wanted={"instruction": "push the cube"}).spaces
    assert found.cameras == ("pixels.side", "pixels.top") and found.instructions == ("push the cube",)
    assert found.control_hz is None and found.is_hz_nominal  # Toy names no rate
    told = spaces.Dict({"task": spaces.Text(20), "state": BOX})
    assert made(told).spaces.instructions == ()  # each observation has its own


def test_what_differs_from_the_registered_environment_is_told() -> None:
    def deviations(num_steps: int, **own) -> tuple[str, ...]:
        env = EnvConfig(
            simulator="gymnasium", sections={"gymnasium": GymnasiumConfig(**own)}, max_control_steps=num_steps
        )
        return simulator_spec(env).evaluation.splits(env).deviations

    assert deviations(1_000) == () == deviations(2_000, id="elsewhere:Other-v0")
    assert deviations(200, kwargs={"reset_noise_scale": 0.2}, success_return=4_000.0) == (
        "episodes end after 200 control steps, as registered after 1000",
        "made with reset_noise_scale=0.2",
        "a return of 4000 counts as success",
    )
