"""LIBERO itself: rlrun's world and robosuite's are the same; a whole run from scratch; a suite that is not there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.libero import equal
from rlrun.config.loader import load
from rlrun.edges.starts import VALIDATION_SEEDS
from rlrun.envs.make import make_env
from rlrun.system.errors import RunError
from rlrun.train import train
from tests.integration.libero import libero_python, libero_scenes

# LIBERO's packages and scenes are downloaded
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]
ORACLES = str(Path(__file__).resolve().parents[2] / "scripts" / "oracles")

SMALL = [
    *("run=single_process", "env=libero", "policy.kind=cnn", "env.num_envs=1", "env.max_control_steps=8"),
    *("algorithm.horizon=4", "algorithm.global_batch_size=4", "actor.micro_batch_size=4", "env.image_size=64"),
    *("num_steps=1", "evaluation.num_episodes=1", "logging.video_episodes=1", "logging.tensorboard=false"),
]


def robosuite(*settings: str) -> list[str]:
    """Overrides for the oracle, with settings such as "suite=libero_goal"."""
    return ["env.simulator=robosuite_world:SPEC", *(f"env.robosuite_world.{one}" for one in settings)]


@pytest.mark.parametrize("has_robosuites_mujoco", [True, False])
def test_both_worlds_are_the_same(has_robosuites_mujoco: bool) -> None:
    """Frames, states and rewards of chunks in which the hand moves freely; pictures to the bit, with one MuJoCo."""
    scenes = libero_scenes("libero_goal", 7)
    task = ["suite=libero_goal", "task_ids=[7]"]
    ours_keys = [*(f"env.libero.{one}" for one in task), f"env.libero.scenes={scenes}"]
    actions = np.random.default_rng(0).uniform(-0.3, 0.3, (3, 1, 4, 7)).astype(np.float32)
    seen = []
    for keys, is_elsewhere in ((robosuite(*task), True), (ours_keys, has_robosuites_mujoco)):
        config = load([*SMALL, *keys, "env.max_control_steps=12"], ORACLES).env
        env = make_env(config, 1, python=libero_python() if is_elsewhere else None)
        try:
            first = env.reset(np.zeros(1, int), np.array([VALIDATION_SEEDS.start + 1]))
            seen.append((first, [env.step_chunk(part) for part in actions]))
        finally:
            env.close()
    (theirs, their_chunks), (ours, our_chunks) = seen
    assert ours.instructions == theirs.instructions == ("turn on the stove",)
    for one, other in zip(
        [ours, *(c.frames for c in our_chunks)], [theirs, *(c.frames for c in their_chunks)], strict=True
    ):
        assert np.abs(one.proprio - other.proprio).max() < 1e-6
        difference = np.abs(one.images.astype(int) - other.images)
        assert difference.mean() < (1e-9 if has_robosuites_mujoco else 1.0) and one.images.std() > 10
    for one, other in zip(our_chunks, their_chunks, strict=True):
        assert np.array_equal(one.rewards, other.rewards) and np.array_equal(one.truncated, other.truncated)
    assert our_chunks[-1].truncated.all()


def test_the_benchmark_finds_control_steps_and_goals_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    """`python -m benchmarks.libero equal`, of one start and thirty control steps of each kind of actions."""
    scenes = str(libero_scenes("libero_goal", 7))
    assert equal(libero_python(), ["libero_goal:7"], num_starts=1, num_steps=30, scenes=scenes) == 0
    rows = [line.split("|")[1:-1] for line in capfd.readouterr().out.splitlines() if "libero_goal:7" in line]
    assert [row[2].strip() for row in rows] == ["60", "60"]  # of both versions of MuJoCo
    for row in rows:
        judged, held, differ = (int(cell) for cell in row[7:10])
        assert judged == 100 and 0 < held < 100 and differ == 0


def test_a_run_on_published_tasks(tmp_path: Path) -> None:
    keys = ["env.libero.suite=libero_goal", "env.libero.task_ids=[7]"]
    scenes = f"env.libero.scenes={libero_scenes('libero_goal', 7)}"
    assert train(load([*SMALL, *keys, scenes, f"output_dir={tmp_path}"])) == 0
    (step,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert step["env_steps"] == 16 and step["num_infra_faults"] == 0 and step["rollout_logprob_gap"] < 1e-4
    assert json.loads((tmp_path / "policy" / "config.json").read_text())["num_images"] == 2
    assert next(tmp_path.rglob("*.mp4")).stat().st_size > 1000


def test_pictures_of_rows_that_change_their_tasks() -> None:
    """A seed shows the same, whichever scenes were closed before it."""
    config = load([*SMALL, *robosuite("suite=libero_spatial", "task_ids=[0, 3]")], ORACLES).env
    env = make_env(config, 2, python=libero_python())
    try:
        seen: dict[int, np.ndarray] = {}
        for seeds in ([0, 0], [0, 1], [1, 1], [1, 0]):
            images = env.reset(np.arange(2), np.array(seeds)).images
            for seed, image in zip(seeds, images, strict=True):
                assert np.array_equal(seen.setdefault(seed, image.copy()), image)
        assert np.abs(seen[0].astype(int) - seen[1]).mean() > 1
    finally:
        env.close()


def test_a_suite_that_is_not_there() -> None:
    with pytest.raises(RunError) as caught:
        make_env(load([*SMALL, *robosuite("suite=libero_cooking")], ORACLES).env, 1, python=libero_python())
    assert caught.value.key == "env.robosuite_world.suite" and "libero_goal" in str(caught.value.remedy)


def expert(folder: Path, *overrides: str):
    scenes = f"env.libero.scenes={libero_scenes('libero_goal', 7)}"
    return load(["run=libero_small", "cluster.kind=local", scenes, f"output_dir={folder}", *overrides])


def test_the_expert_turns_on_the_stove_from_held_out_starts(tmp_path: Path) -> None:
    config = expert(tmp_path).env
    env, rows = make_env(config, 4), np.arange(4)
    try:
        frames = env.reset(rows, VALIDATION_SEEDS.start + rows)
        assert set(frames.instructions) == {"turn on the stove"}
        active, solved, draw = np.ones(4, bool), np.zeros(4, bool), np.random.default_rng(0)
        while active.any():
            actions = env.expert_action(rows)[:, None] + draw.normal(0.0, 0.02, (4, 1, 7)).astype(np.float32)
            result = env.step_chunk(actions, active)
            solved |= result.success
            active &= ~result.ended
        assert solved.all()
    finally:
        env.close()


@pytest.mark.parametrize(("recipe", "tasks"), [("libero_small", (7,)), ("libero_five_tasks", (1, 4, 6, 7, 8))])
def test_a_recipe_records_imitates_and_trains(recipe: str, tasks: tuple[int, ...], tmp_path: Path) -> None:
    """One step of it; docs/learning.md has what the whole of it learns."""
    scenes = {libero_scenes("libero_goal", task) for task in tasks}.pop()
    small = [
        "num_steps=1",
        "env.num_envs=2",
        "algorithm.global_batch_size=4",
        "demos.num_episodes=2",
        "sft.num_steps=2",
    ]
    few = ["sft.batch_size=8", "evaluation.num_episodes=2", "logging.tensorboard=false", f"cache_dir={tmp_path}/cache"]
    places = [f"env.libero.scenes={scenes}", f"output_dir={tmp_path / 'run'}"]
    assert train(load([f"run={recipe}", "cluster.kind=local", *places, *small, *few])) == 0
    (step,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert step["num_infra_faults"] == 0 and step["rollout_logprob_gap"] < 1e-4
    (demos,) = (tmp_path / "cache").glob("demos-*")
    assert json.loads((demos / "meta" / "info.json").read_text())["total_episodes"] == 2
