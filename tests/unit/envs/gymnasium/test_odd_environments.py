"""Environments with one odd thing each: they work, or one sentence names what is wrong."""

from __future__ import annotations

import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlrun.config.loader import load
from rlrun.config.schema import EnvConfig
from rlrun.edges.seeds import simulator_seed
from rlrun.edges.starts import TEST_SEEDS, TRAINING_SEEDS
from rlrun.envs.gymnasium.actions import Actions
from rlrun.envs.gymnasium.observations import ObservationReader
from rlrun.envs.gymnasium.spec import GymnasiumConfig, SuccessRule, Vectorization
from rlrun.envs.make import make_env, simulator_code
from rlrun.envs.restarting_env import RestartingEnv
from rlrun.envs.vector_env import NoPicture
from rlrun.system import notices
from rlrun.system.errors import RunError
from rlrun.workers.demo_recording import demonstrate

ROWS = np.arange(2)
ONE_STEP = np.zeros((2, 1, 2), np.float32)
PICTURE = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


class Odd(gymnasium.Env):
    """An episode of five steps; a test replaces what shall be odd."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))

    def __init__(self, render_mode=None):
        self.render_mode, self.number = render_mode, 0

    def reset(self, *, seed=None, options=None):
        self.number, self.seed = 0, seed
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.number += 1
        return np.zeros(3, np.float32), self.reward(), self.number == 5, False, self.info()

    def reward(self):
        return 1.0

    def info(self):
        return {}

    def render(self):
        return PICTURE


def made(monkeypatch: pytest.MonkeyPatch, wanted: dict | None = None, **changed):
    """Two rows of an environment with changed methods."""
    kind = type("Kind", (Odd,), changed)
    monkeypatch.setitem(gymnasium.registry, "Odd-v0", gymnasium.envs.registration.EnvSpec("Odd-v0", kind))
    own = GymnasiumConfig(id="Odd-v0", **(wanted or {}))
    config = EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, max_control_steps=9)
    return RestartingEnv(lambda: make_env(config, 2), limit=1)


def played(env, num_steps: int = 5) -> list:
    env.reset(ROWS, ROWS)
    return [env.step_chunk(ONE_STEP) for _ in range(num_steps)]


@pytest.mark.parametrize("name", ["no argument", "an assertion", "no OpenGL"])
def test_an_environment_without_this_render_mode(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def without(self):
        Odd.__init__(self)

    def with_others(self, render_mode=None):
        assert render_mode in (None, "human")
        Odd.__init__(self)

    def blind(self, render_mode=None):
        if render_mode:
            raise RuntimeError("no display")
        Odd.__init__(self)

    init = {"no argument": without, "an assertion": with_others, "no OpenGL": blind}[name]
    assert not played(made(monkeypatch, __init__=init))[-1].infra_fault.any()


def _raises(self):
    raise RuntimeError("no display")


RENDERS = {
    "None": (lambda self: None, "returns None"),
    "list": (lambda self: [PICTURE], "returns a list"),
    "floats": (lambda self: PICTURE / 255, "float64"),
    "raises": (_raises, "no display"),
}


@pytest.mark.parametrize("name", RENDERS)
def test_without_pictures_only_the_video_is_missing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    render, message = RENDERS[name]
    env = made(monkeypatch, render=render)
    env.reset(ROWS, ROWS)
    for _ in range(3):
        with pytest.raises(NoPicture, match=message):
            env.render(0, 16, 16)
    assert not env.step_chunk(ONE_STEP).infra_fault.any() and env.faults == []


@pytest.mark.parametrize("vectorization", [None, Vectorization.sync])
def test_a_policy_that_sees_pixels_needs_them(monkeypatch: pytest.MonkeyPatch, vectorization) -> None:
    wanted = {"is_observed_as_pixels": True, "vectorization": vectorization}
    with pytest.raises(RunError, match="draws no pictures, which the policy observes"):
        made(monkeypatch, wanted, render=lambda self: None).reset(ROWS, ROWS)


def test_a_close_that_raises_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    env = made(monkeypatch, close=_raises)
    played(env)
    env.close()
    assert "did not close: RuntimeError: no display" in caplog.text


@pytest.mark.parametrize("method", ["__init__", "reset", "step"])
def test_sys_exit_is_told(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def leave(self, *_, **__):
        raise SystemExit("no licence")

    with pytest.raises(RunError, match="The simulator ended the process: no licence"):
        played(made(monkeypatch, **{method: leave}))


@pytest.mark.parametrize("method", ["__init__", "reset", "step"])
def test_a_question_is_told(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def ask(self, *_, **__):
        input("Where is the data set? ")

    with pytest.raises(RunError, match=r'The simulator asked a question: input\("Where is the data set'):
        played(made(monkeypatch, **{method: ask}))


def test_an_end_of_another_file_is_no_question() -> None:
    with pytest.raises(EOFError), simulator_code():
        raise EOFError("the pipe of the physics server has ended")


ANSWERS = {
    "a step of four": ({"step": lambda self, action: (np.zeros(3), 1.0, False, {})}, "a tuple of 4"),
    "a reset without info": ({"reset": lambda self, seed=None, options=None: np.zeros(3)}, "an array of 3"),
    "a reset without seed": ({"reset": lambda self: (np.zeros(3), {})}, "takes no seed"),
    "rewards of several": ({"reward": lambda self: np.ones(2)}, "its reward is no number"),
    "success of several": ({"info": lambda self: {"success": np.array([True, False])}}, "'success' in info"),
    "success in words": ({"info": lambda self: {"is_success": "False"}}, "'is_success' in info"),
    "success of NaN": ({"info": lambda self: {"success": np.nan}}, "NaN"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_not_gymnasium_s_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    changed, message = ANSWERS[name]
    with pytest.raises(RunError, match="is not as Gymnasium defines environments") as caught:
        played(made(monkeypatch, **changed))
    assert message in str(caught.value)


def test_arrays_of_one_number_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    env = made(monkeypatch, reward=lambda self: np.array([2.0]), info=lambda self: {"success": np.array([0.0])})
    results = played(env)
    assert results[-1].rewards.tolist() == [[2.0], [2.0]] and not results[-1].success.any()


@pytest.mark.parametrize("vectorization", [None, Vectorization.sync])
def test_numbers_beyond_float32_are_told(monkeypatch: pytest.MonkeyPatch, vectorization) -> None:
    env = made(monkeypatch, {"vectorization": vectorization}, reward=lambda self: 1e200 if self.seed else 1.0)
    (result,) = played(env, 1)
    assert result.infra_fault.tolist() == [False, True]
    assert "reward is 1e+200, which is too large for float32" in result.infos[1]["fault"]
    wide = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    seen = {"observation_space": wide, "reset": lambda self, seed=None, options=None: (np.full(3, 1e200), {})}
    with pytest.raises(RunError, match=r"broke|again") as caught:
        made(monkeypatch, {"vectorization": vectorization}, **seen).reset(ROWS, ROWS)
    assert "proprioception 0 is 1e+200, which is too large for float32" in str(caught.value)


@pytest.mark.parametrize("vectorization", [None, Vectorization.sync])
@pytest.mark.parametrize(("rule", "expected"), [(None, True), (SuccessRule.any, True), (SuccessRule.last, False)])
def test_success_of_any_or_the_last_step(monkeypatch, vectorization, rule, expected: bool) -> None:
    """The environment says success at the third step, and goes on."""
    wanted = {"success": rule, "vectorization": vectorization}
    results = played(made(monkeypatch, wanted, info=lambda self: {"success": self.number == 3}))
    assert [bool(result.success[0]) for result in results] == [False, False, True, expected, expected]
    assert results[-1].terminated.all()


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (np.int64, [-0.99, -0.6, 0.4, 9.0], [-1, -1, 0, 1]),
        (np.int8, [-0.99, -0.6, 0.4, 9.0], [-1, -1, 0, 1]),
        (np.float16, [-0.5, 0.25, 2.0, 0.0], [-0.5, 0.25, 1.0, 0.0]),
    ],
)
def test_actions_of_other_types(kind: type, given: list[float], expected: list[float]) -> None:
    space = spaces.Box(-1, 1, (4,), kind)
    native = Actions(space, "x").native(np.array(given, np.float32))
    assert native.tolist() == expected and native.dtype == kind and native in space


def test_whole_numbers_without_limits_and_bytes() -> None:
    unbounded = Actions(spaces.Box(-np.inf, np.inf, (1,), np.int64), "x").spaces(3, 0)
    assert (unbounded.action_low, unbounded.action_high) == ((-np.inf,), (np.inf,))
    assert Actions(spaces.Box(0, 255, (2,), np.uint8), "x").native(np.float32([300, 4.6])).tolist() == [255, 5]


def test_limits_that_float32_rounds_up_are_kept() -> None:
    space = spaces.Box(-0.1, 0.1, (1,), np.float64)
    assert Actions(space, "x").native(np.float32([0.1])) in space  # np.float32(0.1) > 0.1


@pytest.mark.parametrize("vectorization", [None, Vectorization.sync])
def test_an_expert_acts_in_the_environment_s_own_terms(monkeypatch: pytest.MonkeyPatch, vectorization) -> None:
    module = ModuleType("own_expert")
    module.expert = lambda env, observation: [float(env.unwrapped.number), observation[0] + 0.5]  # type: ignore
    module.lost = lambda env, observation: np.zeros(7)  # type: ignore
    monkeypatch.setitem(sys.modules, "own_expert", module)
    wanted = {"vectorization": vectorization}
    env = made(monkeypatch, wanted | {"expert": "own_expert:expert"})
    played(env, 1)
    assert env.expert_action(ROWS).tolist() == [[1.0, 0.5], [1.0, 0.5]]
    env = made(monkeypatch, wanted | {"expert": "own_expert:lost"})
    played(env, 1)
    with pytest.raises(RunError, match="returns no action"):
        env.expert_action(ROWS)
    with pytest.raises(NotImplementedError, match=r"env\.gymnasium\.expert"):
        made(monkeypatch, wanted).expert_action(ROWS)
    with pytest.raises(RunError, match="cannot be imported"):
        made(monkeypatch, wanted | {"expert": "own_expert:missing"})


@pytest.mark.parametrize("has_shadows", [False, True])
def test_mujoco_s_lights_cast_shadows_only_if_asked_for(has_shadows: bool) -> None:
    own = GymnasiumConfig(id="HalfCheetah-v5", has_shadows=has_shadows)
    env = make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}), 1)
    env.reset(np.zeros(1, int), np.zeros(1, int))
    assert env._rows[0].env._env.unwrapped.model.light_castshadow.any() == has_shadows
    env.close()


@pytest.mark.parametrize("vectorization", [None, Vectorization.sync])
@pytest.mark.parametrize("number", [TEST_SEEDS.start, TRAINING_SEEDS.start + 5])
def test_an_environment_gets_seeds_of_31_bits(monkeypatch: pytest.MonkeyPatch, vectorization, number: int) -> None:
    given: list[int] = []

    def reset(self, *, seed=None, options=None):
        np.random.RandomState(seed)
        given.append(seed)
        return Odd.reset(self, seed=seed)

    env = made(monkeypatch, {"vectorization": vectorization}, reset=reset)
    env.reset(ROWS, ROWS + number)
    assert given[-2:] == [simulator_seed(number), simulator_seed(number + 1)]
    assert max(given) < 1 << 31


def test_an_older_run_keeps_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def reset(self, *, seed=None, options=None):
        given.append(seed)
        return Odd.reset(self, seed=seed)

    made(monkeypatch, {"has_whole_seeds": True}, reset=reset).reset(ROWS, ROWS + TRAINING_SEEDS.start)
    assert given[-2:] == [TRAINING_SEEDS.start, TRAINING_SEEDS.start + 1]


def thresholded(monkeypatch: pytest.MonkeyPatch, length: int, limit: int, ends_at: int, vectorization=None, **wanted):
    """Two rows that pay -1 a step, registered with a threshold of -7 and `length` steps."""

    def step(self, action):
        self.number += 1
        return np.zeros(3, np.float32), -1.0, self.number == ends_at, False, {}

    kind = type("Kind", (Odd,), {"step": step})
    spec = gymnasium.envs.registration.EnvSpec("Odd-v0", kind, reward_threshold=-7.0, max_episode_steps=length)
    monkeypatch.setitem(gymnasium.registry, "Odd-v0", spec)
    own = GymnasiumConfig(id="Odd-v0", vectorization=vectorization, **wanted)
    return make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, max_control_steps=limit), 2)


@pytest.mark.parametrize("vectorization", [None, Vectorization.sync])
@pytest.mark.parametrize(
    ("length", "limit", "ends_at", "wanted", "expected"),
    [
        (20, 6, 99, {}, False),  # cut off before the registered length
        (6, 6, 99, {}, True),
        (6, 9, 99, {}, True),  # the return of the registered length counts
        (20, 9, 5, {}, True),  # the goal
        (20, 6, 99, {"success_return": -7.0}, True),  # the user's word
    ],
)
def test_a_registered_threshold_is_that_of_the_registered_length(
    monkeypatch, caplog, vectorization, length, limit, ends_at, wanted, expected
) -> None:
    env = thresholded(monkeypatch, length, limit, ends_at, vectorization, **wanted)
    results = played(env, min(limit, ends_at))
    assert results[-1].ended.all() and results[-1].success.tolist() == [expected] * 2
    assert ("is no success" in caplog.text) is not expected


@pytest.mark.parametrize("limit", [3.4e38, 2e6])
def test_huge_limits_of_actions_are_none(limit: float, caplog: pytest.LogCaptureFixture) -> None:
    space = spaces.Box(np.array([-1, -limit], np.float32), np.array([1, limit], np.float32))
    found = Actions(space, "Odd-v0").spaces(1, 0)
    assert found.action_low == (-1.0, -np.inf) and found.action_high == (1.0, np.inf)
    assert "count as no limits" in caplog.text


def test_usual_limits_are_kept_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    found = Actions(spaces.Box(-512, 512, (1,)), "Odd-v0").spaces(1, 0)
    assert found.action_high == (512.0,) and not caplog.text


@pytest.mark.parametrize("vectorization", [None, Vectorization.sync])
def test_an_expert_needs_a_word_on_success(monkeypatch: pytest.MonkeyPatch, vectorization) -> None:
    module = ModuleType("silent_expert")
    module.expert = lambda env, observation: np.zeros(2, np.float32)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "silent_expert", module)
    env = made(monkeypatch, {"vectorization": vectorization, "expert": "silent_expert:expert"})
    for _ in range(3):
        played(env)
        env.expert_action(ROWS)
    env.reset(ROWS, ROWS)
    with pytest.raises(RunError, match="says nothing of success") as refused:
        env.expert_action(ROWS)
    assert refused.value.key == "env.gymnasium.success_return"


@pytest.mark.parametrize("place", [2, 3])
def test_an_end_of_two_flags_is_named(monkeypatch, place):
    def step(self, action):
        answer = [np.zeros(3, np.float32), 1.0, False, False, {}]
        answer[place] = np.array([False, True])
        return tuple(answer)

    env = made(monkeypatch, step=step)
    env.reset(ROWS, ROWS)
    with pytest.raises(RunError, match="is not as Gymnasium defines environments: its flag t.* is no single one"):
        env.step_chunk(ONE_STEP)


GRID = spaces.Box(0, 255, (7, 7, 3), np.uint8)


@pytest.mark.parametrize("named", [None, ["image"], []])
def test_a_small_grid_of_bytes_is_a_picture_or_state_only_by_name(named):
    space = spaces.Dict(image=GRID, direction=spaces.Discrete(4))
    if named is None:
        with pytest.raises(RunError, match="may be a picture"):
            ObservationReader(space, GymnasiumConfig(), 64)
        return
    states = ["direction"] if named else ["image", "direction"]
    wanted = GymnasiumConfig(state_keys=states, image_keys=named or None)
    reader = ObservationReader(space, wanted, 64)
    assert (reader.num_images, reader.num_proprio) == ((1, 4) if named else (0, 7 * 7 * 3 + 4))


def reused(n_envs, use_async_envs=False, cfg=None):
    """Environments of SAME_STEP that return one array for all observations: the number of the step, 100 at first."""

    class Reuses(Odd):
        observation_space = spaces.Box(0, 200, (1,))

        def reset(self, *, seed=None, options=None):
            self.number, self.array = 0, getattr(self, "array", np.zeros(1, np.float32))
            self.array[:] = 100.0
            return self.array, {}

        def step(self, action):
            self.number += 1
            self.array[:] = self.number
            return self.array, 1.0, False, self.number == 5, {}

    return SyncVectorEnv([Reuses] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def test_the_first_observation_of_the_next_episode_is_not_the_last_of_one(caplog):
    own = GymnasiumConfig(id="Odd-v0", maker=f"{__name__}:reused")
    env = make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, max_control_steps=9), 2)
    env.reset(ROWS, ROWS)
    for _ in range(5):
        result = env.step_chunk(ONE_STEP)
    assert result.truncated.all() and result.frames.proprio[:, 0].tolist() == [4.0, 4.0]
    assert caplog.text.count("may return one array for all") == 1


def restarting(n_envs, use_async_envs=False, cfg=None):
    """Environments of SAME_STEP whose pictures are as grey as many steps were made."""

    class Grey(Odd):
        def step(self, action):
            self.number += 1
            return np.zeros(3, np.float32), 1.0, False, self.number == 5, {}

        def render(self):
            return np.full((8, 8, 3), 20 * self.number, np.uint8)

    return SyncVectorEnv([lambda: Grey("rgb_array")] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def test_the_first_picture_of_the_next_episode_is_not_the_last_of_one(caplog):
    own = GymnasiumConfig(id="Odd-v0", maker=f"{__name__}:restarting", is_observed_as_pixels=True)
    env = make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, max_control_steps=9), 2)
    env.reset(ROWS, ROWS)
    for _ in range(5):
        result = env.step_chunk(ONE_STEP)
    assert result.truncated.all() and result.frames.images[:, 0, 0, 0, 0].tolist() == [80, 80]
    assert caplog.text.count("no picture shows the end") == 1


def test_the_rows_of_a_vector_environment_cannot_act_late() -> None:
    own = GymnasiumConfig(id="Odd-v0", maker=f"{__name__}:reused")
    with pytest.raises(RunError, match="cannot act late") as refused:
        make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, action_delay=1), 2)
    assert refused.value.key == "env.action_delay"
    with pytest.raises(RunError, match="cannot act late"):
        load(["run=cartpole", "env.action_delay=1", "env.gymnasium.vectorization=sync", "policy.num_action_chunks=2"])


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_an_expert_acts_in_a_world_without_limits(monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
    actions = spaces.Box(-np.inf, np.inf, (2,))
    env = made(monkeypatch, {"expert": f"{__name__}:idle_expert", "success_return": 1.0}, action_space=actions)
    assert len(list(demonstrate(env, 1, 0, 1, noise))) == 1


class OddAnswers(SyncVectorEnv):
    """A vector environment whose step answers something else than Gymnasium's."""

    change = staticmethod(lambda *answer: answer)

    def step(self, actions):
        return self.change(*super().step(actions))


VECTOR_ANSWERS = {
    "two flags": (lambda o, r, t, u, i: (o, r, np.stack([t, t], 1), u, i), "its terminated is not one for each of 2"),
    "two rewards": (lambda o, r, t, u, i: (o, np.stack([r, r], 1), t, u, i), "its reward is not one for each of 2"),
    "float flags": (lambda o, r, t, u, i: (o, r, t, u.astype(float), i), "its truncated is not one for each of 2"),
    "one reward": (lambda o, r, t, u, i: (o, r[:1], t, u, i), "its reward is not one for each of 2"),
    "ragged": (lambda o, r, t, u, i: (o, [[1.0], [1.0, 2.0]], t, u, i), "its reward is not one for each of 2"),
    "four": (lambda o, r, t, u, i: (o, r, t, i), r"step\(\) does not return"),
    "six": (lambda o, r, t, u, i: (o, r, r, t, u, i), r"step\(\) does not return"),
    "no info": (lambda o, r, t, u, i: (o, r, t, u, None), r"(?s)step\(\) does not return .*Its info is NoneType"),
    "lists": (lambda o, r, t, u, i: (o, r.tolist(), t.tolist(), u.tolist(), i), None),
    "columns": (lambda o, r, t, u, i: (o, r[:, None], t[:, None], u[:, None], i), None),
}


def odd_answers(n_envs, use_async_envs=False, cfg=None):
    made = OddAnswers([Odd] * n_envs, autoreset_mode=AutoresetMode.DISABLED)
    made.change = VECTOR_ANSWERS[cfg["answer"]][0]
    return made


@pytest.mark.parametrize("answer", VECTOR_ANSWERS)
def test_answers_of_a_vector_environment_are_one_for_each_row(answer):
    own = GymnasiumConfig(id="Odd-v0", maker=f"{__name__}:odd_answers", kwargs={"answer": answer})
    env = make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, max_control_steps=9), 2)
    env.reset(ROWS, ROWS)
    said = VECTOR_ANSWERS[answer][1]
    if said is None:
        assert env.step_chunk(ONE_STEP).rewards.shape == (2, 1)
        return
    with pytest.raises(RunError, match=said) as refused:
        env.step_chunk(ONE_STEP)
    assert refused.value.key == "env.gymnasium.id"


def old_reset(n_envs, use_async_envs=False, cfg=None):
    made = SyncVectorEnv([Odd] * n_envs)
    plain = made.reset
    made.reset = lambda **kwargs: plain(**kwargs)[0]  # as before Gymnasium 0.26
    return made


def shared(n_envs, use_async_envs=False, cfg=None):
    """Environments that return one array, which all of them fill."""
    array = np.zeros(1, np.float32)

    class Shares(Odd):
        observation_space = spaces.Box(0, 200, (1,))

        def reset(self, *, seed=None, options=None):
            array[:] = seed or 0
            return array, {}

    return SyncVectorEnv([Shares] * n_envs)


@pytest.mark.parametrize(
    ("maker", "said"), [("old_reset", r"reset\(\) does not return"), ("shared", "may share one array")]
)
def test_odd_resets_of_a_vector_environment(maker, said):
    own = GymnasiumConfig(id="Odd-v0", maker=f"{__name__}:{maker}", vectorization=Vectorization.sync)
    with pytest.raises(RunError, match=said) as refused:
        make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, max_control_steps=9), 2)
    if maker == "shared":  # sync was tried
        assert "vectorization=async, or null" in str(refused.value.remedy)


def bytes_of(side, most):
    return spaces.Box(0, most, (side, side, 3), np.uint8)


def test_grids_of_bytes_that_are_larger(monkeypatch):
    """Up to 10: no colours. Up to 255: a picture unless it is named, and what its first bytes say is told."""
    monkeypatch.setattr(notices, "_told", {})
    with pytest.raises(RunError, match="may be a picture"):
        ObservationReader(bytes_of(16, 10), GymnasiumConfig(), 64)
    full = spaces.Dict(image=bytes_of(16, 255), direction=spaces.Discrete(4))
    named = ObservationReader(full, GymnasiumConfig(state_keys=["image", "direction"]), 64)
    assert (named.num_images, named.num_proprio) == (0, 16 * 16 * 3 + 4)
    with pytest.raises(RunError, match="numbers that are no picture"):
        ObservationReader(bytes_of(64, 255), GymnasiumConfig(state_keys=[""]), 64)
    seen = {"image": np.zeros((16, 16, 3), np.uint8), "direction": 0}
    guessed = ObservationReader(full, GymnasiumConfig(), 64)
    guessed.images(seen)
    assert notices.notices() == ()  # black says nothing
    seen["image"][3, 4, 0] = 10
    guessed.images(seen)
    guessed.images(seen)
    (told,) = notices.notices()
    assert "'image'" in told and "larger than 10" in told and "state_keys" in told


@pytest.mark.parametrize(
    ("space", "most", "keys"),
    [(bytes_of(16, 255), 200, None), (bytes_of(64, 255), 9, None), (bytes_of(16, 255), 9, [""])],
)
def test_pictures_are_no_grids(monkeypatch, space, most, keys):
    """Colours, sizes of pictures, and a camera that the user has named."""
    monkeypatch.setattr(notices, "_told", {})
    reader = ObservationReader(space, GymnasiumConfig(image_keys=keys), 64)
    reader.images(np.full(space.shape, most, np.uint8))
    assert reader.num_images == 1 and notices.notices() == ()


def idle_expert(env, observation):
    return np.zeros(2, np.float32)


class Fails(Odd):
    def reward(self):
        return 0.0

    def info(self):
        return {"success": False}


@pytest.mark.parametrize(
    ("limit", "noise", "key", "remedies"),
    [
        (3, 0.1, "demos.noise", ["demos.noise=0", "raise env.max_control_steps"]),
        (3, 0.0, "env.max_control_steps", ["raise env.max_control_steps"]),
        (9, 0.0, "demos.path", ["mend the expert"]),
        (9, 0.1, "demos.noise", ["demos.noise=0", "mend the expert"]),
    ],
)
def test_an_expert_that_fails_is_told_what_was_seen(limit, noise, key, remedies):
    """Episodes end after five steps, unless the time limit is shorter."""
    gymnasium.register("Fails-v0", Fails)
    own = GymnasiumConfig(id="Fails-v0", expert=f"{__name__}:idle_expert")
    env = make_env(EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, max_control_steps=limit), 2)
    with pytest.raises(RunError, match="only 0 of 8") as refused:
        list(demonstrate(env, 4, 0, 1, noise))
    assert refused.value.key == key and ("8 lasted until the time limit" in str(refused.value)) == (limit == 3)
    known = {"demos.noise=0", "raise env.max_control_steps", "mend the expert"}
    assert {one for one in known if one in str(refused.value.remedy)} == set(remedies)
    gymnasium.registry.pop("Fails-v0")
