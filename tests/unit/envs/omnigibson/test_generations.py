"""What the adapter does with the differences of the generations, in one process with their stand-ins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.envs.omnigibson.bench import GENERATIONS, Bench

SCENE = "house_double_floor_lower"


@pytest.fixture(params=GENERATIONS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, request.param)


def write_instance(folder: Path, number: int, position: list[float]) -> None:
    """Write an instance whose robot starts at `position` of its scene."""
    folder.mkdir(parents=True, exist_ok=True)
    pose = {"position": position, "orientation": [0.0, 0.0, 0.0, 1.0]}
    radio = {"root_link": {"pos": [0.5, 0.3, 0.7], "ori": [0.0, 0.0, 0.0, 1.0]}}
    name = f"{SCENE}_task_turning_on_radio_0_{number}_template-tro_state.json"
    (folder / name).write_text(json.dumps({"radio_receiver.n.01_1": radio, "robot_poses": {"R1Pro": [pose]}}))


def test_robots_start_in_their_own_scene(bench: Bench) -> None:
    """The task of 3.7 would place the robot of every scene in the world's frame, which is that of scene 0."""
    write_instance(bench.folder / "instances", 7, [4.0, 5.0, 0.0])
    places = bench.told(
        f"env = make(instance_dir={str(bench.folder / 'instances')!r}, instance_ids=[7])\n"
        "env.reset(ROWS, ROWS)\n"
        "first = places(env)\n"
        "env.reset(ROWS[1:], ROWS[1:])\n"
        "tell([first, places(env)])"
    )
    assert places == [[pytest.approx([4.0, 5.0, 0.0], abs=1e-5)] * 2] * 2


@pytest.mark.parametrize("renders", [3, 1])
def test_an_unseen_step_is_neither_rendered_nor_observed(bench: Bench, renders: int) -> None:
    """A chunk of 8: one render of the last step and as many more as are wanted, one observation of each row."""
    counts = bench.told(
        f"env = make(renders_at_chunk_end={renders}, renders_after_reset=6)\n"
        "env.reset(ROWS, ROWS)\n"
        "sim = env.simulation.og.sim\n"
        "sim.counts.update(dict.fromkeys(sim.counts, 0))\n"
        "env.step_chunk(np.tile(rest_action(), (2, 8, 1)))\n"
        "tell(sim.counts)"
    )
    assert counts == {"steps": 8, "physics_steps": 32, "renders": renders, "observations": 2, "dumps": 0, "loads": 0}


def test_rendering_and_observations_come_back_after_a_step_that_raises(bench: Bench) -> None:
    """OmniGibson's own context leaves rendering off after an exception."""
    is_back = bench.told(
        "env = make(num_envs=1)\n"
        "env.reset(ROWS[:1], ROWS[:1])\n"
        "sim, real = env.simulation.og.sim, env.simulation.og.sim.step\n"
        "def broken(): raise ValueError('physics')\n"
        "sim.step = broken\n"
        "try: env.step_chunk(np.tile(rest_action(), (1, 8, 1)))\n"
        "except ValueError: pass\n"
        "sim.step = real\n"
        "sim.counts.update(renders=0)\n"
        "sim.step()\n"
        "owner = getattr(env.simulation, '_envs', None) or [env.simulation._env]\n"
        "tell([sim.counts['renders'], 'get_obs' in vars(owner[0])])"
    )
    assert is_back == [1, False]


def test_the_grasp_window_is_set_where_the_generation_keeps_it(bench: Bench) -> None:
    module = "manipulation_robot" if bench.generation == "3_7" else "robot"
    code = "make(%s)\nimport importlib\ntell(importlib.import_module('omnigibson.robots.%s').m.GRASP_WINDOW)"
    assert bench.told(code % ("grasp_window_s=0.75", module)) == 0.75
    assert bench.told(code % ("", module)) == (1 / 30 if bench.generation == "3_7" else 3.0)


def test_a_grasp_window_that_no_module_has_is_refused(bench: Bench) -> None:
    """Macros of any name can be set on any module without an error."""
    told = bench.told(
        "from rlrun.envs.omnigibson import launch\n"
        "from rlrun.system.errors import RunError\n"
        "launch.GRASPING_MODULES = ('omnigibson.macros',)\n"
        "try: make(grasp_window_s=0.75)\n"
        "except RunError as error: tell(str(error))"
    )
    assert "no grasp window" in told


def test_equal_seeds_give_equal_poses(bench: Bench) -> None:
    """Poses are drawn from the reset seed, not from Python's global generator."""
    places = bench.told(
        "import random\n"
        "env = make(randomize_presampled_pose=True)\n"
        "seen = []\n"
        "for start in (0, 1):\n"
        "    random.seed(start)\n"
        "    for seed in (3, 4, 5, 6, 7, 8):\n"
        "        env.reset(ROWS, np.array([seed, seed]))\n"
        "        seen.append(places(env))\n"
        "tell(seen)"
    )
    assert places[:6] == places[6:]
    assert all(first == second for first, second in places)
    assert len({str(one) for one in places}) > 1


def test_a_new_pose_leaves_the_last_episode_behind(bench: Bench) -> None:
    """The robot is placed anew in a scene that was reset: arms are not where the last episode left them."""
    told = bench.told(
        "env = make(num_envs=1, randomize_presampled_pose=True)\n"
        "one, frames = ROWS[:1], {}\n"
        "env.reset(one, np.array([3]))\n"
        "frames = env.reset(one, np.array([6]))\n"
        "action = np.tile(rest_action(), (1, 20, 1)); action[:, :, 7:10] = env.spaces.action_high[7:10]\n"
        "env.reset(one, np.array([3])); env.step_chunk(action)\n"
        "again = env.reset(one, np.array([6]))\n"
        "tell(bool(np.array_equal(frames.images, again.images) and np.array_equal(frames.proprio, again.proprio)))"
    )
    assert told is True


def test_cameras_that_nobody_asked_for_do_not_exist(bench: Bench) -> None:
    names = bench.told(
        "env = make(cameras=['right_realsense_link'])\n"
        "env.reset(ROWS, ROWS)\n"
        "picture = env.render(0, 48, 64)\n"
        "tell([sorted(env.simulation.robot(0).sensors), list(picture.shape), bool(picture.any())])"
    )
    assert names == [["robot_r1:right_realsense_link:Camera:0"], [48, 64, 3], True]


def test_transition_rules_are_switched_off_by_name(bench: Bench) -> None:
    told = bench.told(
        "import omnigibson.transition_rules as rules\n"
        "from rlrun.system.errors import RunError\n"
        "make(num_envs=1, disabled_transition_rules=['CookingSystemRule'])\n"
        "state = [rules.CookingSystemRule.ENABLED, rules.MixingToolRule.ENABLED]\n"
        "try: make(num_envs=1, disabled_transition_rules=['BakingRule'])\n"
        "except RunError as error: tell([*state, str(error)])"
    )
    assert told[:2] == [False, True] and "no transition rule BakingRule" in told[2]


def test_a_scene_without_poses_is_refused(bench: Bench) -> None:
    told = bench.told(
        "from rlrun.system.errors import RunError\n"
        "env = make(num_envs=1)\n"
        "env.simulation.scene(0).metadata.clear()\n"
        "try: env.reset(ROWS[:1], ROWS[:1])\n"
        "except RunError as error: tell(str(error))"
    )
    assert "no pose from which" in told and "no robot" in told


def test_the_robot_stays_where_the_scene_put_it_if_wanted(bench: Bench) -> None:
    places = bench.told("env = make(use_presampled_robot_pose=False)\nenv.reset(ROWS, ROWS)\ntell(places(env))")
    assert places == [[0.0, 0.0, 0.0]] * 2


DATA = "2026-challenge-task-instances"


def test_instances_of_the_challenge(bench: Bench) -> None:
    """Test instances of 2026 lie apart from those of training; another year's are not mixed with them."""
    inner = f"{SCENE}/json/{SCENE}_task_turning_on_radio_instances"
    data = bench.folder / "data"
    write_instance(data / DATA / "scenes" / inner, 1, [1.0, 0.0, 0.0])
    write_instance(data / DATA / "scene_test" / "public" / inner, 301, [3.0, 0.0, 0.0])
    code = "env = make(%s)\nenv.reset(ROWS, ROWS)\ntell(places(env))"
    where = {"OMNIGIBSON_DATA_PATH": str(data)}
    assert bench.told(code % "instance_ids=[301]", **where) == [pytest.approx([3.0, 0.0, 0.0], abs=1e-5)] * 2
    write_instance(data / "2025-challenge-task-instances" / "scenes" / inner, 1, [2.0, 0.0, 0.0])
    refusal = (
        "from rlrun.system.errors import RunError\n"
        "try: make(instance_ids=[1])\n"
        "except RunError as error: tell(str(error))"
    )
    assert "instance_year" in bench.told(refusal, **where)
    for year, place in ((2025, 2.0), (2026, 1.0)):
        wanted = f"instance_ids=[1], instance_year={year}"
        assert bench.told(code % wanted, **where) == [pytest.approx([place, 0.0, 0.0], abs=1e-5)] * 2


def test_two_files_with_one_number_are_refused(bench: Bench) -> None:
    inner = f"{SCENE}/json/{SCENE}_task_turning_on_radio_instances"
    for part in ("public", "private"):
        write_instance(bench.folder / "data" / DATA / "scene_test" / part / inner, 301, [3.0, 0.0, 0.0])
    told = bench.told(
        "from rlrun.system.errors import RunError\n"
        "try: make(instance_ids=[301])\n"
        "except RunError as error: tell(str(error))",
        OMNIGIBSON_DATA_PATH=str(bench.folder / "data"),
    )
    assert "have one number" in told
