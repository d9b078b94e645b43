"""What check-simulator says of worlds that keep the contract and in which little can be learned."""

from __future__ import annotations

import logging

import gymnasium
import numpy as np
import pytest

from rlrun import check_simulator
from rlrun.check_simulator import check
from rlrun.config.schema import EnvConfig
from rlrun.envs.gymnasium.spec import GymnasiumConfig
from rlrun.envs.make import make_env
from rlrun.testing import random_play
from rlrun.testing.random_play import RandomPlay
from rlrun.testing.simulators import NUM_ENVS, EnvUnderTest

LIMIT = 20


class Clock:
    """Time that passes only where a world says so."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Walk(gymnasium.Env):
    """A point on a line that actions move by `gain`; pays `reward` times its place, and `bonus`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    clock = Clock()

    def __init__(self, gain=1.0, reward=1.0, bonus=0.0, reset_s=0.0, step_s=0.01):
        self.gain, self.reward, self.bonus, self.reset_s, self.step_s = gain, reward, bonus, reset_s, step_s

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock.now += self.reset_s
        self.place = self.np_random.uniform(-100, 100, 2)
        return self.place.astype(np.float32), {}

    def step(self, action):
        self.clock.now += self.step_s
        self.place = self.place + self.gain * action[0]
        reward = self.reward * self.place[0] + self.bonus
        return self.place.astype(np.float32), reward, False, False, {}


gymnasium.register("Walk-v0", f"{__name__}:Walk", disable_env_checker=True)


def notes(monkeypatch: pytest.MonkeyPatch, limit: int = LIMIT, **kwargs: float) -> list[str]:
    monkeypatch.setattr(random_play, "time", Walk.clock)
    own = GymnasiumConfig(id="Walk-v0", kwargs=dict(kwargs), success_return=1e9)
    config = EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, max_control_steps=limit)
    play = RandomPlay(EnvUnderTest(config, lambda: make_env(config, NUM_ENVS), make_env(config, NUM_ENVS)))
    play.run()
    return play.facts()


def test_a_usual_world_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notes(monkeypatch) == []
    assert notes(monkeypatch, limit=100_000, bonus=1.0, reward=0.0) == []  # no episode has ended


@pytest.mark.parametrize("limit", [LIMIT, 100_000])
def test_rewards_that_are_all_0(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    (note,) = notes(monkeypatch, limit=limit, reward=0.0)
    assert note.startswith("all ") and note.endswith("episodes were 0")


def test_returns_that_are_all_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = notes(monkeypatch, reward=0.0, bonus=1.0)
    assert note.startswith("the returns of the last ") and note.endswith("episodes were 20")


def test_actions_that_move_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = notes(monkeypatch, gain=1e-4)
    assert "no number of the state moved by more than 0.00% of its range" in note


def test_resets_that_take_most_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notes(monkeypatch, reset_s=0.6) == ["resets take 75% of the time of the env workers"]
    assert notes(monkeypatch, reset_s=0.1) == []
    assert notes(monkeypatch, reset_s=0.6, limit=1000) == []  # one reset in so many control steps


gymnasium.register(
    "Limited-v0", f"{__name__}:Walk", disable_env_checker=True, max_episode_steps=7, reward_threshold=-1e9
)


@pytest.mark.parametrize(
    ("words", "limit"), [((), 7), (("env.max_control_steps=5",), 5), (("env.gymnasium.id=Walk-v0",), 44)]
)
def test_episodes_have_the_limit_that_the_environment_is_registered_with(
    words: tuple[str, ...], limit: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_play, "SECONDS", 0.0)
    with pytest.raises(SystemExit):
        own = ["env.gymnasium.id=Limited-v0", "env.gymnasium.success_return=1e9"]
        check(["policy.kind=mlp", "gymnasium", *own, *words])
    assert f"in {NUM_ENVS} envs, episodes of at most {limit}\n" in capsys.readouterr().out


def test_the_time_limit_of_the_checks_is_not_blamed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MountainCar and others: their registered threshold holds for longer episodes than those of the checks."""
    monkeypatch.setattr(random_play, "SECONDS", 0.0)
    gymnasium.register("Long-v0", f"{__name__}:Walk", None, -1e9, max_episode_steps=30, disable_env_checker=True)
    with pytest.raises(SystemExit):
        check(["policy.kind=mlp", "gymnasium", "env.gymnasium.id=Long-v0"])
    assert "the contract holds" in capsys.readouterr().out
    assert "set env.max_control_steps" not in caplog.text


def test_other_warnings_of_simulators_are_printed_during_the_checks(caplog: pytest.LogCaptureFixture) -> None:
    with check_simulator._without_its_limit():
        logging.getLogger("rlrun.envs.rows").warning("row 0 broke")
        logging.getLogger("rlrun.envs.rows").warning("set env.max_control_steps=30")
    assert "row 0 broke" in caplog.text and "env.max_control_steps" not in caplog.text


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        check(["policy.kind=mlp", "gymnasium", "env.gymnasium.id=Walk-v0", "env.gymnasium.success_return=1e9", *words])
    return int(ended.value.code or 0), capsys.readouterr().out


def test_notes_leave_the_exit_status(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_play, "SECONDS", 0.0)
    status, text = told(capsys, "+env.gymnasium.kwargs.reward=0.0")
    assert status == 0 and "the contract holds" in text and "broken" not in text
    assert "note: by random actions: all " in text
    assert "note: pictures show something: not judged: render() draws nothing" in text


def test_the_interpreter_of_the_node_groups_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["policy.kind=mlp", "run=cartpole", "placement.nodes={sim: {python: /nowhere/python}}"]
    with pytest.raises(SystemExit) as ended:
        check(words)
    assert ended.value.code and "/nowhere/python" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        check([*words[:2], "placement.nodes={a: {python: /nowhere/a}, b: {python: /nowhere/b}}"])
    assert "several interpreters" in capsys.readouterr().err


def test_a_broken_promise_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = np.random.default_rng(0)
    monkeypatch.setattr(Walk, "place", property(lambda self: chance.uniform(size=2), lambda self, place: None), False)
    status, text = told(capsys)
    assert status == 5 and "broken: a seed decides: the same seed starts differently" in text
    assert "the contract holds" not in text
