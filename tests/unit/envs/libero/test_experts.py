"""Experts of LIBERO: how one is named and asked, what the stove's does, and which published starts an episode takes."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.config.simulator_spec import simulator_spec
from rlrun.edges.starts import Split
from rlrun.envs.libero.experts import CLOSED, ExpertView, turn_on_the_stove
from rlrun.envs.libero.goals import Goal
from rlrun.envs.libero.libero_env import LiberoVectorEnv, make_libero
from rlrun.envs.libero.spec import LiberoConfig, start_ranges
from rlrun.system.errors import RunError
from rlrun.workers.demo_recording import demonstrate
from tests.unit.envs.libero import small_suite

pytestmark = small_suite.needs_opengl

HERE = "tests.unit.envs.libero.test_experts"
ONE = np.zeros(1, int)


def pull_the_drawer(view: ExpertView) -> np.ndarray:
    """Open the drawer of the small suite a little in each control step: a test needs no skill of an arm."""
    view.data.joint("drawer_slide").qpos[0] += 0.03
    return view.towards(view.body("box") + [0.0, 0.0, 0.3], CLOSED, gain=1.0)


def too_short(view: ExpertView) -> np.ndarray:
    return np.zeros(3)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_suite.write(tmp_path_factory.mktemp("scenes"))


def made(scenes: Path, *keys: str) -> LiberoVectorEnv:
    own = [
        f"env.libero.suite={small_suite.NAME}",
        f"env.libero.scenes={scenes}",
        "env.image_size=32",
        "env.libero.pictures=fast",
    ]
    env = make_libero(load(["env=libero", "policy.kind=cnn", "env.libero.cameras=[agentview]", *own, *keys]).env, 1)
    assert isinstance(env, LiberoVectorEnv)
    return env


def test_demonstrations_are_recorded_of_the_expert_that_is_named(scenes: Path) -> None:
    env = made(scenes, f"env.libero.expert={HERE}:pull_the_drawer", "env.libero.task_ids=[0]")
    steps: list[int] = []
    (episode,) = demonstrate(env, 1, 0, 1, noise=0.0, progress=lambda: steps.append(1))
    assert len(steps) == len(
        episode.actions
    )  # the watchdog sees that an expert moves long before its first episode ends
    assert episode.success and 2 <= len(episode.actions) <= 6  # 0.1 m in steps of 0.03 m, and coasting
    assert (episode.actions[:, -1] == CLOSED).all() and (episode.actions[:, 3:6] == 0).all()


def test_the_hand_goes_straight_to_a_point(scenes: Path) -> None:
    env = made(scenes, f"env.libero.expert={HERE}:pull_the_drawer")
    env.reset(ONE, ONE)
    data, hand, _ = env.state(0)
    way = data.body("box").xpos + [0.0, 0.0, 0.3] - hand
    action = env.expert_action(ONE)[0, :3]
    np.testing.assert_allclose(action / np.linalg.norm(action), way / np.linalg.norm(way), atol=1e-6)
    assert np.abs(action).max() == 1.0


@pytest.mark.parametrize(("has_openness", "gripper"), [(False, 1.0), (True, 0.0)])
def test_the_gripper_is_told_in_the_words_of_the_world(scenes: Path, has_openness: bool, gripper: float) -> None:
    env = made(scenes, f"env.libero.expert={HERE}:pull_the_drawer", f"env.libero.has_openness={has_openness}")
    env.reset(ONE, ONE)
    assert env.expert_action(ONE)[0, -1] == gripper


@pytest.mark.parametrize(
    ("expert", "said"),
    [
        (f"{HERE}:missing", "cannot be imported"),
        ("no_such_module:expert", "cannot be imported"),
        (f"{HERE}:too_short", "returns no action"),
        ("rlrun.envs.libero.experts:turn_on_the_stove", "is for another task"),
    ],
)
def test_what_is_no_expert_of_the_task_is_refused(scenes: Path, expert: str, said: str) -> None:
    with pytest.raises(RunError, match=said) as caught:
        env = made(scenes, f"env.libero.expert={expert}")
        env.reset(ONE, ONE)
        env.expert_action(ONE)
    assert caught.value.key == "env.libero.expert"


def test_without_an_expert_there_are_no_demonstrations(scenes: Path) -> None:
    env = made(scenes)
    assert not simulator_spec(load(["env=libero", "policy.kind=cnn"]).env).world.has_expert(env._config)
    with pytest.raises(NotImplementedError, match=r"env\.libero\.expert"):
        env.expert_action(ONE)


STOVE = """<mujoco><worldbody><body pos="0.3 0.1 0.9"><joint name="flat_stove_1_button" axis="0 0 1"/>
  <geom size="0.01" mass="1"/></body></worldbody></mujoco>"""


@pytest.mark.parametrize(
    ("hand", "direction"),
    [
        ((-0.2, 0.0, 1.2), (1, 1, -1)),  # from afar: down to it
        ((0.338, 0.112, 1.0), (0, 0, -1)),  # above it: down
        ((0.338, 0.115, 0.935), (0, 1, 0)),  # the lever is between the fingers: to the side
        ((0.338, 0.06, 0.935), (0, 1, 1)),  # beside the knob: up and over it
    ],
)
def test_the_stove_is_turned_on_from_wherever_the_hand_is(hand: tuple, direction: tuple) -> None:
    model = mujoco.MjModel.from_xml_string(STOVE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    action = turn_on_the_stove(ExpertView(model, data, np.array(hand), np.full(3, 0.05), Goal(model, [], {})))
    assert tuple(np.sign(np.round(action[:3], 1)).astype(int)) == direction
    assert (action[3:6] == 0).all() and action[6] == -1.0


def test_the_recipe_holds_out_the_starts_of_its_evaluations() -> None:
    config = load(["run=libero_small"])
    assert simulator_spec(config.env).world.has_expert(config.env)
    ranges = start_ranges(config.env.section(LiberoConfig))
    assert ranges == {Split.train: range(40), Split.validation: range(40, 50), Split.test: None}
