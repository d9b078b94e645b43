"""Parts of the adapter by themselves: macros, pictures, instances, scores."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlrun.config.checks import OF_INPUTS
from rlrun.config.loader import load
from rlrun.config.schema import EnvConfig
from rlrun.data.task_instances import InstanceResult, results_by_instance
from rlrun.edges.reports import EpisodeReport
from rlrun.edges.starts import TEST_SEEDS, TRAINING_SEEDS, VALIDATION_SEEDS
from rlrun.envs.omnigibson.configuration import instruction, needed_rooms, rooms_of, scene_config, task_config, to_rgb
from rlrun.envs.omnigibson.generations import robot_kind
from rlrun.envs.omnigibson.instances import InstanceLoader, chosen_ids, instance_files
from rlrun.envs.omnigibson.launch import set_macros
from rlrun.envs.omnigibson.omnigibson_env import is_terminated, q_score, step_info
from rlrun.envs.omnigibson.spec import Instances, OmniGibsonConfig, for_evaluation, splits
from rlrun.system.errors import RunError

SHARED = Path(__file__).parents[3] / "standins" / "shared"


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(SHARED))
    monkeypatch.delitem(sys.modules, "standin", raising=False)
    import standin

    return standin


FIRST_SEEDS = {
    "train": TRAINING_SEEDS.start,
    "demos": 1_000_000,
    "validation": VALIDATION_SEEDS.start,
    "test": TEST_SEEDS.start,
}


def test_macros_are_set_before_they_are_read(standin) -> None:
    gm = standin.new_macros(ENABLE_FLATCACHE=False, HEADLESS=False, USE_GPU_DYNAMICS=False)["globals"]
    set_macros(gm, EnvConfig())
    assert gm.ENABLE_FLATCACHE is True and gm.HEADLESS is True
    set_macros(gm, EnvConfig())  # what has its value need not be set again
    with pytest.raises(RunError, match="USE_GPU_DYNAMICS|ENABLE_FLATCACHE"):
        assert gm.ENABLE_FLATCACHE
        set_macros(gm, EnvConfig(sections={"omnigibson": OmniGibsonConfig(flatcache=False)}))


@pytest.mark.parametrize(("side", "size"), [(720, 224), (480, 224), (96, 64), (64, 64), (50, 80)])
def test_pictures_are_averaged_over_areas(side: int, size: int) -> None:
    random = np.random.default_rng(0)
    picture = random.integers(0, 256, (side, side, 4), np.uint8)
    small = to_rgb(picture, size)
    assert small.shape == (size, size, 3) and small.dtype == np.uint8
    assert small.mean() == pytest.approx(picture[..., :3].mean(), abs=1.0)
    even = np.full((side, side, 4), 77, np.uint8)
    assert (to_rgb(even, size) == 77).all()


def test_two_pixels_become_their_mean() -> None:
    picture = np.zeros((4, 4, 4), np.uint8)
    picture[:, ::2] = 100
    assert (to_rgb(picture, 2) == 50).all()


def test_pictures_of_other_kinds() -> None:
    assert (to_rgb(np.full((8, 8, 4), 0.5, np.float32), 8) == 128).all()
    with pytest.raises(ValueError, match="expected"):
        to_rgb(np.zeros((8, 8), np.uint8), 8)


@pytest.mark.parametrize(
    ("now", "at_reset", "success", "expected"),
    [
        ([[True, True, False]], [[False] * 3], False, 2 / 3),
        ([[True, True, False]], [[True, False, False]], False, 1 / 3),  # what held from the start earns nothing
        ([[False, False], [True, False]], [[False, False]] * 2, False, 0.5),  # the best option counts
        ([[True]], [[True]], True, 1.0),
        ([], [], False, 0.0),
    ],
)
def test_q_score(now: list, at_reset: list, success: bool, expected: float) -> None:
    assert q_score(now, at_reset, success) == pytest.approx(expected)


def info(timeout: bool = False, predicate: bool = False, fallen: bool = False) -> dict:
    conditions = {"timeout": timeout, "predicate": predicate, "falling": fallen}
    return {
        "reward": {"reward_breakdown": {"potential": 1 / 3}, "potential": {"x": object()}},
        "done": {
            "success": predicate,
            "termination_conditions": {name: {"done": on, "success": on} for name, on in conditions.items()},
            "goal_status": {"satisfied": [0], "unsatisfied": []},
        },
        "obs_info": object(),
        "episode_length": 99,
    }


def test_only_other_conditions_than_the_time_limit_terminate() -> None:
    assert not is_terminated(info(timeout=True))
    assert is_terminated(info(predicate=True)) and is_terminated(info(fallen=True))


def test_info_is_plain_and_counts_as_we_do() -> None:
    kept = step_info(info(timeout=True), num_steps=7, is_truncated=False)
    assert json.loads(json.dumps(kept)) == kept
    assert kept["episode_length"] == 7
    assert kept["done"]["termination_conditions"]["timeout"] == {"done": False, "success": False}


def write_instances(folder: Path, ids: list[int]) -> None:
    for one in ids:
        (folder / f"house_double_floor_lower_task_turning_on_radio_0_{one}_template-tro_state.json").write_text("{}")
    (folder / "house_double_floor_lower_task_turning_on_radio_1_5_template-tro_state.json").write_text("{}")
    (folder / "house_double_floor_lower_task_turning_on_radio_0_8_template.json").write_text("{}")


def behavior(**own: object) -> EnvConfig:
    return EnvConfig(sections={"omnigibson": OmniGibsonConfig(**own)})


def test_instances_of_a_folder(tmp_path: Path) -> None:
    write_instances(tmp_path, [301, 7, 40])
    config = behavior(instance_dir=str(tmp_path), instances=Instances.sampled)
    files = instance_files(config)
    assert list(files) == [7, 40, 301] == chosen_ids(config, files)
    with pytest.raises(RunError, match="not there") as caught:
        chosen_ids(behavior(instance_dir=str(tmp_path), instance_ids=[7, 8]), files)
    assert "Instance 8 is not among 7 to 301" in caught.value.cause
    with pytest.raises(RunError):
        instance_files(behavior(instance_dir=str(tmp_path / "none")))


def test_seeds_choose_instances(tmp_path: Path) -> None:
    write_instances(tmp_path, list(range(301, 311)))
    listed = InstanceLoader(SimpleNamespace(), behavior(instance_dir=str(tmp_path), instance_ids=[303, 301]))
    assert [listed.instance_of(seed) for seed in (0, 1, 2, 2_000_000)] == [303, 301, 303, 303]
    sampled = InstanceLoader(SimpleNamespace(), behavior(instance_dir=str(tmp_path), instances=Instances.sampled))
    drawn = [sampled.instance_of(seed) for seed in range(60)]
    assert set(drawn) == set(range(301, 311))
    assert drawn == [sampled.instance_of(seed) for seed in range(60)]


def test_rooms_follow_from_the_activity() -> None:
    assert needed_rooms("picking_up_trash", 0) == ["kitchen", "living_room"]
    assert needed_rooms("turning_on_radio", 0) == ["living_room"]
    assert scene_config(behavior())["load_room_types"] == ["corridor", "kitchen", "living_room"]
    wanted = behavior(load_room_types=["garage"], extra_room_types=["corridor"])
    assert scene_config(wanted)["load_room_types"] == ["corridor", "garage"]
    assert "load_room_types" not in scene_config(behavior(load_room_types=[]))
    with pytest.raises(RunError, match="no activity 'flying'"):
        needed_rooms("flying", 0)


@pytest.mark.parametrize(
    ("scene", "activity", "named", "loaded"),
    [
        ("house_double_floor_lower", "picking_up_trash", ["kitchen"], ["corridor", "kitchen", "living_room"]),
        (
            "house_double_floor_lower",
            "chopping_wood",
            ["garden"],
            ["garage", "garden"],
        ),
        ("house_double_floor_lower", "bringing_in_kindling", ["garden"], ["corridor", "garden"]),
        ("house_single_floor", "picking_up_trash", ["kitchen"], ["dining_room", "kitchen", "living_room"]),
        ("house_double_floor_upper", "picking_up_trash", ["bedroom"], ["bedroom"]),
    ],
)
def test_rooms_that_official_code_adds(scene: str, activity: str, named: list[str], loaded: list[str]) -> None:
    assert rooms_of(scene, activity, named) == loaded


def test_evaluations_load_all_rooms_unless_some_are_chosen() -> None:
    assert scene_config(for_evaluation(behavior())).get("load_room_types") is None
    assert scene_config(for_evaluation(behavior(load_room_types=["garage"])))["load_room_types"] == ["garage"]


def test_the_time_limit_of_omnigibson_never_comes_before_ours() -> None:
    """Two thousand steps means 2000: theirs lets step 2001 pass, ours cuts after 2000."""
    assert task_config(EnvConfig(max_control_steps=2000))["termination_config"]["max_steps"] >= 2000


def test_instruction() -> None:
    assert instruction(EnvConfig()) == "turn on the radio"
    assert instruction(behavior(instruction="Turn on the radio.")) == "Turn on the radio."


def test_a_build_without_the_robot() -> None:
    assert robot_kind({"R1Pro": object}) == {"type": "R1Pro"}
    assert robot_kind({"r1pro": object}) == {"model": "r1pro"}
    with pytest.raises(RunError, match="no R1Pro"):
        robot_kind({"Fetch": object, "R1": object})


def report(seed: int, success: bool, q: float, steps: int, fault: bool = False) -> EpisodeReport:
    return EpisodeReport(0, seed, success, q, 0.0, steps, success, not success, fault)


def test_results_by_instance() -> None:
    """Seeds choose instances in turn; an infra fault is no attempt."""
    reports = [report(0, True, 1.0, 600), report(1, False, 1 / 3, 2000), report(3, False, 0.0, 1000)]
    reports.append(report(4, False, 0.0, 7, fault=True))
    first, second = results_by_instance(reports, [301, 302, 303], action_hz=30)
    assert first == InstanceResult(301, 2, 1, 0.5, 800.0, pytest.approx(800 / 30))
    assert second == InstanceResult(302, 1, 0, pytest.approx(1 / 3), 2000.0, pytest.approx(2000 / 30))


@pytest.mark.parametrize("instances", [Instances.listed, Instances.sampled])
def test_instances_that_are_kept_for_validation_and_test_never_begin_training(instances, tmp_path, monkeypatch):
    ids = list(range(1, 9))
    monkeypatch.setattr("rlrun.envs.omnigibson.instances.instance_files", lambda config: dict.fromkeys(ids, tmp_path))
    kept = {"validation_instance_ids": [2, 4], "test_instance_ids": [7, 8]}
    loader = InstanceLoader(None, behavior(instances=instances, instance_ids=ids, **kept))
    begun = {name: {loader.instance_of(first + i) for i in range(100)} for name, first in FIRST_SEEDS.items()}
    assert begun == {"train": {1, 3, 5, 6}, "demos": {1, 3, 5, 6}, "validation": {2, 4}, "test": {7, 8}}


def test_instances_that_are_all_kept_leave_none_to_train_on(tmp_path):
    with pytest.raises(RunError, match="not there") as refusal:
        chosen_ids(behavior(instance_ids=[7], test_instance_ids=[7]), {7: tmp_path})
    assert "kept for validation or test" in refusal.value.cause


def test_splits_say_whether_training_takes_the_test_instances():
    honest = splits(behavior(instance_ids=[1, 2, 3], test_instance_ids=[3]))
    assert honest.trained_on_test == "" and honest.test == "instances [3]" and "without [3]" in honest.train
    assert splits(behavior(instance_ids=[1, 2, 3])).trained_on_test.startswith("Trained on test starts")


def test_what_differs_from_the_challenge_is_told():
    challenge = load(["run=behavior_2026"], skipped=OF_INPUTS).env
    assert splits(challenge).deviations == ()
    others = splits(behavior(base_mass_kg=None, self_collisions=True, instances=Instances.online)).deviations
    assert others == (
        "each episode places its objects at random, in the challenge by listed instances",
        "the robot's base weighs as in its model, in the challenge 250 kg",
        "no transition rules (cutting, cooking, mixing)",
    )
