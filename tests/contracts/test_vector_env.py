"""Every implementation of VectorEnv keeps the same promises."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.config.schema import EnvConfig
from rlrun.edges.episode_numbers import LEFT_OUT, NUMBERS
from rlrun.edges.frames import Frames
from rlrun.envs.embedded.mujoco_env import MujocoVectorEnv
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.envs.gymnasium.spec import GymnasiumConfig
from rlrun.envs.libero.libero_env import LiberoVectorEnv
from rlrun.envs.libero.spec import LiberoConfig, Pictures
from rlrun.envs.make import make_env
from rlrun.envs.omnigibson.spec import OmniGibsonConfig
from rlrun.envs.r1pro_keys import ProprioLayout, RewardMode
from rlrun.envs.remote_env import RemoteEnv
from rlrun.envs.rows import RowsEnv
from rlrun.envs.vector_env import VectorEnv
from rlrun.testing.simulators import CHECKS, CHUNK, NUM_ENVS, TIME_LIMIT, EnvUnderTest, same
from tests.integration.libero import libero_python
from tests.unit.envs.libero import small_suite

Make = Callable[..., VectorEnv]


@dataclass(frozen=True)
class Implementation:
    """One simulator and activity under test, and how to break one of its rows."""

    config: EnvConfig
    break_row: Callable[[VectorEnv, int], None]
    prepare: Callable[[Path], str | None] = lambda folder: None  # makes the simulator's interpreter
    reward_part: str = "potential"


def _break_mujoco(env: VectorEnv, row: int) -> None:
    assert isinstance(env, MujocoVectorEnv)
    env._rows[row].data.qvel[0] = np.inf


def _interpreter(path: Path, environment: dict[str, object], python: str = sys.executable) -> str:
    """`python` with an environment of its own."""
    words = [f"{name}={shlex.quote(str(value))}" for name, value in environment.items()]
    path.write_text(f'#!/bin/sh\n{" ".join(words)} exec {python} "$@"\n')
    path.chmod(0o755)
    return str(path)


def _breakable(folder: Path, python: str = sys.executable) -> str:
    return _interpreter(folder / "python", {"PYTHONPATH": Path(__file__).parent / "breaking", "BREAK_ROW": 1}, python)


def _break_by_signal(env: VectorEnv, row: int) -> None:
    assert isinstance(env, RemoteEnv) and row == 1
    os.kill(env.about["pid"], signal.SIGUSR1)
    env.render(0, 16, 16)  # Python's handlers run before the next call


class _Broken(gymnasium.Wrapper):
    """Its state is not a number."""

    def step(self, action):
        observation, *rest = super().step(action)
        return observation * np.nan, *rest


def _break_gymnasium(env: VectorEnv, row: int) -> None:
    assert isinstance(env, RowsEnv)
    env._rows[row].env._env = _Broken(env._rows[row].env._env)


class _Raising(gymnasium.Wrapper):
    """Its renderer, or anything else of it, raises."""

    def step(self, action):
        raise OSError("the simulator lost its display")


def _break_by_raising(env: VectorEnv, row: int) -> None:
    assert isinstance(env, RowsEnv)
    env._rows[row].env._env = _Raising(env._rows[row].env._env)


def _gymnasium(name: str, is_observed_as_pixels: bool = False) -> EnvConfig:
    wanted = GymnasiumConfig(id=name, is_observed_as_pixels=is_observed_as_pixels)
    return EnvConfig(simulator="gymnasium", sections={"gymnasium": wanted}, max_control_steps=TIME_LIMIT)


def _standin(generation: str) -> Callable[[Path], str]:
    """An interpreter whose `omnigibson` is the stand-in of one generation; its control file lies beside it."""

    def prepare(folder: Path) -> str:
        standins = Path(__file__).parents[1] / "standins"
        paths = f"{standins / f'omnigibson_{generation}'}:{standins / 'shared'}"
        variables = {"PYTHONPATH": paths, "STANDIN_CONTROL": folder / "control.json"}
        return _interpreter(folder / "python", variables | {"OMNIGIBSON_APPDATA_PATH": folder / "appdata"})

    return prepare


def _break_standin(env: VectorEnv, row: int) -> None:
    assert isinstance(env, RemoteEnv)
    (Path(env.python).parent / "control.json").write_text(json.dumps({"nan_row": row}))


NUM_INSTANCES = 9


def _embedded(**own: Any) -> EnvConfig:
    return EnvConfig(max_control_steps=TIME_LIMIT, sections={"embedded": EmbeddedConfig(**own)})


def _behavior() -> EnvConfig:
    """The adapter's configuration, with small pictures and instances that this test makes."""
    own = OmniGibsonConfig(
        instance_ids=list(range(NUM_INSTANCES)),
        instance_dir=str(_INSTANCES),
        head_resolution=96,
        wrist_resolution=80,
        controlled=["base", "trunk", "arm_left", "gripper_left", "arm_right", "gripper_right"],
        cameras=["zed_link", "right_realsense_link"],
        proprio=ProprioLayout.full_256,
        reward=RewardMode.potential,
    )
    return EnvConfig(
        simulator="omnigibson",
        max_control_steps=TIME_LIMIT,
        sections={"omnigibson": own},
    )


def _write_instances(folder: Path) -> None:
    for i in range(NUM_INSTANCES):
        pose = {"position": [0.1 * i, -0.2 * i, 0.0], "orientation": [0.0, 0.0, 0.0, 1.0]}
        radio = {"root_link": {"pos": [0.5 + 0.05 * i, 0.3, 0.7], "ori": [0.0, 0.0, 0.0, 1.0]}}
        name = f"house_double_floor_lower_task_turning_on_radio_0_{i}_template-tro_state.json"
        state = {"radio_receiver.n.01_1": radio, "robot_poses": {"R1Pro": [pose]}}
        (folder / name).write_text(json.dumps(state))


_INSTANCES = Path(tempfile.mkdtemp(prefix="rlrun-instances-"))
_write_instances(_INSTANCES)
atexit.register(shutil.rmtree, _INSTANCES, ignore_errors=True)


def _libero(**own: Any) -> EnvConfig:
    return EnvConfig(
        simulator="libero",
        sections={"libero": LiberoConfig(**own)},
        action_hz=20,
        max_control_steps=TIME_LIMIT,
    )


def _small_libero(**own: Any) -> EnvConfig:
    """A suite whose tasks have three published starts; with shadows a picture takes a tenth of a second."""
    starts = {"validation_starts": "0:1", "test_starts": "1:3"}
    return _libero(suite=small_suite.NAME, scenes=str(_SCENES), pictures=Pictures.fast, **starts, **own)


def _break_libero(env: VectorEnv, row: int) -> None:
    assert isinstance(env, LiberoVectorEnv)
    env.state(row)[0].qvel[0] = np.inf


def _in_robosuite() -> EnvConfig:
    """The oracle of LIBERO's own code."""
    oracles = str(Path(__file__).parents[2] / "scripts" / "oracles")
    keys = ["env=libero", "policy.kind=cnn", "env.simulator=robosuite_world:SPEC", "env.robosuite_world.task_ids=[0]"]
    return load([*keys, f"env.max_control_steps={TIME_LIMIT}"], oracles).env


_SCENES = Path(tempfile.mkdtemp(prefix="rlrun-scenes-"))
small_suite.write(_SCENES)
atexit.register(shutil.rmtree, _SCENES, ignore_errors=True)

IMPLEMENTATIONS = {
    "embedded-radio": Implementation(EnvConfig(max_control_steps=TIME_LIMIT), _break_mujoco),
    "embedded-trash": Implementation(
        _embedded(activity="picking_up_trash", proprio=ProprioLayout.full_256),
        _break_mujoco,
    ),
    "embedded-all-parts": Implementation(
        _embedded(
            controlled=["base", "trunk", "arm_left", "gripper_left", "arm_right", "gripper_right"],
            cameras=["zed_link", "left_realsense_link", "right_realsense_link"],
        ),
        _break_mujoco,
    ),
    "embedded-own-process": Implementation(EnvConfig(max_control_steps=TIME_LIMIT), _break_by_signal, _breakable),
    "libero": Implementation(
        _small_libero(),
        _break_libero,
        reward_part="task",
    ),
    "libero-robosuite": Implementation(
        _in_robosuite(),
        _break_by_signal,
        lambda folder: _breakable(folder, libero_python()),
        reward_part="task",
    ),
    "gymnasium-mujoco": Implementation(_gymnasium("HalfCheetah-v5"), _break_gymnasium, reward_part="task"),
    "gymnasium-discrete": Implementation(_gymnasium("CartPole-v1"), _break_gymnasium, reward_part="task"),
    "gymnasium-pixels": Implementation(_gymnasium("Pendulum-v1", True), _break_by_raising, reward_part="task"),
    "omnigibson-3.7": Implementation(_behavior(), _break_standin, _standin("3_7")),
    "omnigibson-3.8": Implementation(_behavior(), _break_standin, _standin("3_8")),
    "omnigibson-3.9": Implementation(_behavior(), _break_standin, _standin("3_9")),
}


MARKS = {
    "libero": [small_suite.needs_opengl],
    "libero-robosuite": [pytest.mark.long, pytest.mark.timeout(1200)],
}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in IMPLEMENTATIONS], scope="module")
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return IMPLEMENTATIONS[request.param]


@pytest.fixture(scope="module")
def make(implementation: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Make:
    python = implementation.prepare(tmp_path_factory.mktemp("interpreter"))
    return lambda num_envs=NUM_ENVS: make_env(implementation.config, num_envs, python=python)


@pytest.fixture(scope="module")
def env(make: Make) -> Iterator[VectorEnv]:
    env = make()
    yield env
    env.close()


def rows(*ids: int) -> np.ndarray:
    return np.array(ids)


def start(env: VectorEnv, seed: int = 7) -> Frames:
    return env.reset(np.arange(env.num_envs), np.full(env.num_envs, seed))


def random_actions(env: VectorEnv, seed: int = 0, num_steps: int = CHUNK) -> np.ndarray:
    """The same random actions [B, C, A] near the middle of the range in every row."""
    share = np.random.default_rng(seed).uniform(0.4, 0.6, (1, num_steps, env.spaces.num_actions))
    low, high = env.spaces.limits
    actions = low + share * (high - low)
    return np.repeat(actions, env.num_envs, axis=0).astype(np.float32)


@pytest.fixture(scope="module")
def subject(implementation: Implementation, make: Make, env: VectorEnv) -> EnvUnderTest:
    return EnvUnderTest(implementation.config, make, env)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_promise(check: Callable[[EnvUnderTest], Iterator[str]], subject: EnvUnderTest) -> None:
    assert list(check(subject)) == []


def test_wrong_actions_are_refused(env: VectorEnv) -> None:
    start(env)
    with pytest.raises(ValueError, match="expected"):
        env.step_chunk(random_actions(env)[:, :, :-1])
    broken = random_actions(env)
    broken[1, 0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        env.step_chunk(broken)
    env.step_chunk(broken, active=np.array([True, False, True]))  # what an inactive row holds does not matter


def test_infra_fault_voids_one_row(env: VectorEnv, implementation: Implementation) -> None:
    start(env)
    expected = env.step_chunk(random_actions(env))
    start(env)
    implementation.break_row(env, 1)
    result = env.step_chunk(random_actions(env))
    assert result.infra_fault.tolist() == [False, True, False]
    assert not (result.terminated[1] or result.truncated[1] or result.success[1])
    assert not result.step_valid[1].any() and not result.rewards[1].any()
    assert same(result.frames.rows(rows(0, 2)), expected.frames.rows(rows(0, 2)))
    with pytest.raises(RuntimeError, match="reset"):
        env.step_chunk(random_actions(env))
    env.reset(rows(1), rows(7))
    healed = env.step_chunk(random_actions(env), active=np.array([False, True, False]))
    assert same(healed.frames.rows(rows(1)), expected.frames.rows(rows(1)))


def test_info_follows_omnigibson(env: VectorEnv, implementation: Implementation) -> None:
    start(env)
    info = env.step_chunk(random_actions(env)).infos[0]
    assert set(info) - {NUMBERS, LEFT_OUT} == {"reward", "done", "episode_length"}
    assert set(info["done"]) == {"success", "termination_conditions", "goal_status"}
    assert set(info["done"]["termination_conditions"]) == {"timeout", "predicate"}
    assert set(info["done"]["goal_status"]) == {"satisfied", "unsatisfied"}
    assert info["episode_length"] == CHUNK
    assert implementation.reward_part in info["reward"]["reward_breakdown"]
    assert info["done"]["success"] is False


def test_reward_is_the_sum_of_its_parts(env: VectorEnv) -> None:
    start(env)
    result = env.step_chunk(random_actions(env))
    parts = result.infos[0]["reward"]["reward_breakdown"]
    assert result.rewards[0, -1] == pytest.approx(sum(parts.values()), abs=1e-6)


def test_two_environments_in_one_process(env: VectorEnv, make: Make) -> None:
    start(env)
    expected = env.step_chunk(random_actions(env))
    other = make()
    start(env)
    other.reset(rows(0), rows(99))
    result = env.step_chunk(random_actions(env))
    other.close()
    assert same(result.frames, expected.frames)
    assert same(start(env), start(env))
