"""Which starts episodes of training, validation and test take, and what the configuration says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlrun.config.loader import compose_only, load
from rlrun.config.schema import EnvConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.edges.starts import TEST_SEEDS, TRAINING_SEEDS, VALIDATION_SEEDS, Split
from rlrun.envs.libero.libero_env import LiberoVectorEnv, make_libero
from rlrun.envs.libero.spec import (
    SPEC,
    LiberoConfig,
    num_scenes,
    parts_of_perturbations,
    perturbations,
    start_ranges,
)
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


def declared(*keys: str) -> EnvConfig:
    return load(["env=libero", "policy.kind=cnn", *keys]).env


@pytest.mark.parametrize(
    "key",
    ["idle_gripper=0.0", "turn=raw", "colours=bgr", "crop=0.5", "state=euler", "sentence=upper", "settle_steps=5"],
)
def test_a_card_names_each_convention_that_is_not_the_published_one(key: str) -> None:
    published = simulator_spec(declared()).evaluation.splits(declared()).deviations
    env = declared(f"env.libero.{key}")
    (more,) = set(simulator_spec(env).evaluation.splits(env).deviations) - set(published)
    assert key.partition("=")[0].partition("_")[0] in more
    other = declared("env.action_hz=10")
    assert "10 control steps a second" in " ".join(simulator_spec(other).evaluation.splits(other).deviations)


def test_no_variant_is_called_held_out_where_training_had_all() -> None:
    for keys, is_held_out in ((["plus_held_out=false"], False), ([], True)):
        env = declared("env.libero.plus=[camera]", *(f"env.libero.{key}" for key in keys))
        worlds = perturbations(env)
        assert worlds["plus_camera"].section(LiberoConfig).plus_held_out is is_held_out
        assert worlds["plus_robot"].section(LiberoConfig).plus_held_out is False  # as published
        assert ("plus_camera_held_out" in parts_of_perturbations(env)) is is_held_out


def test_a_task_is_named_once() -> None:
    with pytest.raises(RunError, match="names a task twice") as caught:
        declared("env.libero.task_ids=[7,1,7]")
    assert "env.libero.task_ids=[7, 1]" in str(caught.value)


@pytest.mark.parametrize(
    ("suite", "count"),
    [
        ("libero_goal", 1),
        ("libero_goal_lan", 1),
        ("libero_goal_swap", 10),
        ("libero_goal_object", 10),
        ("libero_90", 90),
    ],
)
def test_tasks_share_a_scene_where_only_their_words_or_goals_differ(suite: str, count: int) -> None:
    assert num_scenes(declared(f"env.libero.suite={suite}")) == count


def test_tasks_have_names_where_their_sentences_do_not_tell_them_apart() -> None:
    task = SPEC.evaluation.task
    assert [task(declared("env.libero.suite=libero_90"), seed) for seed in (20, 134)] == [
        "libero_90:20",
        "libero_90:44",
    ]
    assert task(declared("env.libero.suite=libero_goal_swap", "env.libero.task_ids=[4,7]"), 3) == "libero_goal_swap:7"
    assert task(declared("env.libero.suite=my_own"), 3) == ""


RECIPES = ("libero_simplevla_rl", "libero_rlinf", "libero_pi05", "libero_smolvla", "libero_gr00t", "libero_five_tasks")


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_start_is_evaluated_twice(recipe: str) -> None:
    config = compose_only([f"run={recipe}"])
    own = config.env.section(LiberoConfig)
    starts = start_ranges(own)[Split.validation]
    assert starts is not None and config.evaluation.num_episodes == (len(own.task_ids) or 10) * len(starts)
