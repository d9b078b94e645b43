"""An own reward is computed after each control step in every kind of world, and names itself when it breaks."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rlrun.check_simulator import check
from rlrun.config.loader import load
from rlrun.config.own_reward import reward_terms
from rlrun.config.schema import EnvConfig, Renderer
from rlrun.edges.episode_numbers import TERMS
from rlrun.envs.gymnasium.spec import GymnasiumConfig, Vectorization
from rlrun.envs.make import make_env
from rlrun.envs.own_reward import OwnRewardEnv
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import ExitStatus, RunError
from rlrun.testing import random_play

ROWS = np.arange(2)
C = 4
MODULE = """
import numpy as np

def reach(observation, action, info, reward):
    return info["x"] + 10 * reward + 100 * float(action[0])

def moved(observation, action, info, reward, previous):
    return observation["proprio"][0] - previous["proprio"][0]

def near(observation, action, info, reward):
    return -float(np.linalg.norm(info["bodies"]["radio"]))

def seen(observation, action, info, reward):
    assert observation["images"].dtype == np.uint8 and observation["images"].any() and observation["instruction"]
    return float(info["success"])

def raises(observation, action, info, reward):
    return info["no_such_number"]

def nan(observation, action, info, reward):
    return float("nan")

def vector(observation, action, info, reward):
    return np.zeros(3)

def two(observation, action):
    return 0.0

def writes(observation, action, info, reward):
    observation["proprio"][0] = 0.0

def huge(observation, action, info, reward):
    return 1e9
"""


class Line(gymnasium.Env):
    """A point on a line; the info has its place, the simulator's reward is 1, and the third step ends an episode."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.number = float(seed % 50), 0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.number += 1
        self.place += float(action[0])
        return np.array([self.place], np.float32), 1.0, self.number == 3, False, {"x": self.place}


gymnasium.register("OwnRewardLine-v0", Line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module `own_terms`, which is the working directory."""
    (tmp_path / "own_terms.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("own_terms", None)


def config(reward: object, **settings: object) -> EnvConfig:
    own = GymnasiumConfig(id=f"{__name__}:OwnRewardLine-v0", **settings)
    return EnvConfig(simulator="gymnasium", sections={"gymnasium": own}, reward=reward, max_control_steps=10)


def chunk(env: VectorEnv, seeds: np.ndarray = ROWS) -> tuple[np.ndarray, tuple]:
    env.reset(ROWS, seeds)
    result = env.step_chunk(np.full((len(ROWS), C, 1), 0.5, np.float32))
    env.close()
    return result.rewards, result.infos


@pytest.mark.parametrize("vectorization", [None, Vectorization.sync])
def test_terms_are_weighted_and_summed_for_each_control_step(folder: Path, vectorization: Vectorization | None) -> None:
    terms = {"reach": {"function": "own_terms:reach", "weight": 2.0}, "moved": "own_terms:moved"}
    env = make_env(config(terms, vectorization=vectorization), 2)
    rewards, infos = chunk(env)
    reach = [[2 * (seed + 0.5 * k + 10 + 50) for k in (1, 2, 3)] + [0] for seed in ROWS]
    expected = np.array(reach) + np.array([0.5, 0.5, 0.5, 0])
    assert np.allclose(rewards, expected)  # the episode ends with the third step
    assert infos[1][TERMS] == pytest.approx({"reach": sum(reach[1]), "moved": 1.5, "simulator": 3.0})


def test_without_one_the_simulator_is_not_wrapped() -> None:
    env = make_env(config(None), 2)
    rewards, infos = chunk(env)
    assert not isinstance(env, OwnRewardEnv) and rewards.tolist() == [[1, 1, 1, 0]] * 2 and TERMS not in infos[0]


def test_it_runs_in_the_simulators_own_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose interpreter does not look into the working directory."""
    own = GymnasiumConfig(id="Pendulum-v1")
    sections = {"gymnasium": own}
    reward = {"moved": "own_terms:moved"}
    env = make_env(EnvConfig(simulator="gymnasium", sections=sections, reward=reward, own_process=True), 2)
    rewards, infos = chunk(env)
    assert rewards.all() and infos[0][TERMS]["moved"] == pytest.approx(rewards[0].sum(), abs=1e-5)
    broken = EnvConfig(simulator="gymnasium", sections=sections, reward="own_terms:raises", own_process=True)
    env = make_env(broken, 2)
    env.reset(ROWS, ROWS)
    with pytest.raises(RunError, match="own_terms:raises raised KeyError") as caught:
        env.step_chunk(np.zeros((2, C, 1), np.float32))
    assert "own_terms.py:18" in str(caught.value.cause)
    env.close()


def test_the_embedded_world_shows_pictures_and_bodies(folder: Path) -> None:
    terms = {"near": "own_terms:near", "seen": {"function": "own_terms:seen", "weight": 0.5}}
    env = make_env(EnvConfig(reward=terms, image_size=16, renderer=Renderer.raycast), 1)
    env.reset(np.arange(1), np.arange(1))
    result = env.step_chunk(np.zeros((1, 2, env.spaces.num_actions), np.float32))
    env.close()
    assert (result.rewards < -0.5).all() and result.step_valid.all()  # the radio lies in front of the robot


@pytest.mark.parametrize(
    ("name", "what", "place"),
    [
        ("raises", "raised KeyError", "own_terms.py:18) at control step 1 of seed 0"),
        ("nan", "returns nan", "own_terms.py:20"),
        ("vector", "returns no number", "an array of shape [3]"),
        ("two", "takes other arguments", "own_terms.py:26"),
        ("absent", "cannot be imported", "has no attribute 'absent'"),
        ("writes", "raised ValueError", "read-only"),
        ("huge", "returns more than env.max_abs_reward=1e\\+06", "own_terms.py:32"),
    ],
)
def test_a_fault_names_the_function_its_file_and_its_line(folder: Path, name: str, what: str, place: str) -> None:
    with pytest.raises(RunError, match=f"The reward own_terms:{name} {what}") as caught:
        chunk(make_env(config(f"own_terms:{name}"), 2))
    error = caught.value
    assert place in str(error.cause) and (error.key, error.exit_status) == ("env.reward", ExitStatus.bad_input)


def test_check_simulator_tries_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_play, "SECONDS", 0.1)
    world = ["policy.kind=mlp", "env.simulator=gymnasium", "env.gymnasium.id=CartPole-v1"]
    with pytest.raises(SystemExit):
        check([*world, "env.reward=own_terms:nan"])
    assert "The reward own_terms:nan returns nan" in capsys.readouterr().err
    fine = [f"env.gymnasium.id={__name__}:OwnRewardLine-v0", "env.reward=own_terms:reach", "env.info=[x,y]"]
    with pytest.raises(SystemExit):
        check([*world, *fine])
    out = capsys.readouterr().out
    assert "reward/reach is" in out and "its info has the numbers x" in out
    assert "env.info names y, which its info has not" in out


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("no_module", "is not module:FUNCTION"),
        ({}, "neither module:FUNCTION nor a mapping"),
        ({"a b": "m:f"}, "is no name of a term"),
        ({"simulator": "m:f"}, "that of the simulator's reward"),
        ({"a": {"function": "m:f", "wieght": 1}}, "the term a is"),
        ({"a": {"function": "m:f", "weight": "much"}}, "no finite number"),
        ({"a": {"weight": 1}}, "the term a is"),
    ],
)
def test_what_names_no_reward_is_refused(value: object, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        reward_terms(EnvConfig(reward=value))


def test_the_configuration_refuses_it_before_anything_starts() -> None:
    with pytest.raises(RunError, match="env.reward names no reward"):
        load(["run=cartpole", "env.reward=somewhere"])


def test_its_module_is_found_from_anywhere_once_it_was_found(folder: Path) -> None:
    assert str(folder) in load(["run=cartpole", "env.reward=own_terms:nan"]).python_path
