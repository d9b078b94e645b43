"""Which starts episodes of training, validation and test take, and what the configuration says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.config.simulator_spec import simulator_spec
from rlrun.edges.starts import TEST_SEEDS, TRAINING_SEEDS, VALIDATION_SEEDS
from rlrun.envs.libero.libero_env import LiberoVectorEnv, make_libero
from rlrun.system.errors import RunError
from tests.unit.envs.libero import small_suite

ONE = np.zeros(1, int)
RANGES = ["env.libero.validation_starts='0:1'", "env.libero.test_starts='1:3'"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_suite.write(tmp_path_factory.mktemp("scenes"))


def made(scenes: Path, *keys: str) -> LiberoVectorEnv:
    own = ["env.libero.suite=small", f"env.libero.scenes={scenes}", "env.libero.task_ids=[0]"]
    config = load(["env=libero", "policy.kind=cnn", *own, "env.libero.settle_steps=0", "env.image_size=32", *keys])
    env = make_libero(config.env, 1)
    assert isinstance(env, LiberoVectorEnv)
    return env


def places(env: LiberoVectorEnv, first_seed: int, count: int = 4) -> list[tuple[float, float]]:
    """Return where the box begins in episodes of consecutive seeds: x and y, m."""
    at = env._rows[0].task.scene.model.joint("box_joint").qposadr[0]
    found = []
    for seed in range(first_seed, first_seed + count):
        env.reset(ONE, np.array([seed]))
        x, y = env._rows[0].data.qpos[at : at + 2]
        found.append((round(float(x), 6), round(float(y), 6)))
    return found


def test_splits_have_starts_of_their_own(scenes: Path) -> None:
    env = made(scenes, *RANGES)
    published, y = [0.40, 0.41, 0.42], places(env, VALIDATION_SEEDS.start)[0][1]
    assert {x for x, _ in places(env, VALIDATION_SEEDS.start)} == {published[0]}
    assert {x for x, _ in places(env, TEST_SEEDS.start)} == set(published[1:])
    for first in (TRAINING_SEEDS.start, 1_000_000):  # training, and demonstrations
        assert {y for _, y in places(env, first)} == {round(y + small_suite.SAMPLED_SHIFT, 6)}


def test_training_from_published_starts_is_one_key(scenes: Path) -> None:
    env = made(scenes, *RANGES, "env.libero.train_starts='0:3'")
    assert {x for x, _ in places(env, TRAINING_SEEDS.start)} == {0.40, 0.41, 0.42}


def test_an_export_without_sampled_starts_is_refused_where_they_are_needed(tmp_path: Path) -> None:
    folder = small_suite.write(tmp_path, num_sampled=0)
    env = made(folder, *RANGES)
    env.reset(ONE, np.array([VALIDATION_SEEDS.start]))
    with pytest.raises(RunError, match="No starts were sampled") as refusal:
        env.reset(ONE, np.array([TRAINING_SEEDS.start]))
    assert refusal.value.key == "env.libero.train_starts"


def test_starts_that_a_task_does_not_have_are_refused(scenes: Path) -> None:
    env = made(scenes, "env.libero.test_starts='0:4'")
    with pytest.raises(RunError, match="3 published starts") as refusal:
        env.reset(ONE, np.array([TEST_SEEDS.start + 3]))
    assert refusal.value.key == "env.libero.test_starts"


@pytest.mark.parametrize("starts", ["'40'", "'4:2'", "'a:b'", "'-1:3'"])
def test_a_range_that_cannot_be_read_is_refused_early(starts: str) -> None:
    with pytest.raises(RunError) as refusal:
        load(["env=libero", "policy.kind=cnn", f"env.libero.train_starts={starts}"])
    assert refusal.value.key == "env.libero.train_starts"


WHOLE = "env.libero.train_starts='0:50'", "env.libero.test_starts='0:50'", "env.libero.pictures=fast"


def splits(*keys: str):
    env = load(["env=libero", "policy.kind=cnn", *keys]).env
    return simulator_spec(env).evaluation.splits(env)


def test_training_from_test_starts_and_deviations_are_told() -> None:
    plain = splits()
    assert plain.trained_on_test == ""
    assert plain.train == "sampled starts" and plain.test == "published starts 10 to 49"
    assert plain.deviations == ("of each task's 50 published starts, the test takes published starts 10 to 49",)
    others = splits(*WHOLE)
    assert others.trained_on_test.startswith("Trained on test starts")
    assert others.deviations == ("pictures have no reflections and shadows, and coarser meshes",)
    longer = splits(*WHOLE, "env.libero.suite=libero_goal_swap", "env.libero.settle_steps=20")
    assert longer.deviations == (
        "pictures have no reflections and shadows, and coarser meshes",
        "episodes end after 220 control steps, in OpenVLA's evaluation after 300",
        "objects settle for 20 control steps, in OpenVLA's evaluation for 10",
    )
    assert splits(*WHOLE, "env.libero.suite=libero_goal", "env.max_control_steps=300").deviations == others.deviations
    both = splits("env.libero.test_starts=sampled")
    assert both.trained_on_test.startswith("Trained on test starts")


def test_suites_of_libero_pro_are_perturbed_worlds() -> None:
    env = load(["env=libero", "policy.kind=cnn", "env.libero.suite=libero_goal"]).env
    worlds = simulator_spec(env).evaluation.perturbations(env)
    suites = {name: world.sections["libero"].suite for name, world in worlds.items()}
    assert {name: suite for name, suite in suites.items() if not name.startswith("plus_")} == {
        name: f"libero_goal_{name}" for name in ("lan", "object", "swap", "task", "env")
    }
