"""The adapter against the stand-ins of the three generations, through the pipe, as a run would use it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlrun.edges.episode_numbers import NUMBERS, TERMS
from rlrun.envs import r1pro
from rlrun.envs.omnigibson.spec import Instances
from rlrun.envs.r1pro_keys import RewardMode
from rlrun.envs.remote_env import RemoteEnv
from rlrun.envs.restarting_env import RestartingEnv
from rlrun.envs.vector_env import SimulatorFault
from rlrun.system.errors import RunError
from tests.unit.envs.omnigibson.bench import GENERATIONS, Bench

ROWS = np.arange(2)


@pytest.fixture(params=GENERATIONS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, request.param)


@pytest.fixture
def env(bench: Bench) -> Iterator[RemoteEnv]:
    env = bench.make(max_control_steps=2000)
    yield env
    env.close()


def raised(env: RemoteEnv, row: int, num_joints: int, num_steps: int) -> np.ndarray:
    """Rest, and the first joints of one row's left arm raised: so many literals of the stand-in's goal come true."""
    rest = np.zeros(23, np.float32)
    for part in ("trunk", "arm_left", "arm_right"):
        rest[r1pro.ACTION_PARTS[part]] = [r1pro.RESET_POSE[name] for name in r1pro.joints_of(part)]
    actions = np.tile(rest, (2, num_steps, 1))
    start = r1pro.ACTION_PARTS["arm_left"].start
    actions[row, :, start : start + num_joints] = env.spaces.action_high[start : start + num_joints]
    return actions


def test_success_terminates_and_the_other_row_goes_on(env: RemoteEnv) -> None:
    env.reset(ROWS, ROWS)
    result = env.step_chunk(raised(env, 1, 3, 40))
    assert result.terminated.tolist() == [False, True] == result.success.tolist()
    assert not result.truncated.any() and result.q_score.tolist() == [0.0, 1.0]
    steps = int(result.step_valid[1].sum())
    assert 0 < steps < 40 and not result.rewards[1, steps:].any()
    assert result.rewards[1].sum() == pytest.approx(1.0)
    assert result.step_valid[0].all()


def test_partial_success_is_told_by_literals(env: RemoteEnv) -> None:
    """One head (forall), two of its three literals: goal_status tells nothing of it, the score does."""
    env.reset(ROWS, ROWS)
    result = env.step_chunk(raised(env, 1, 2, 40))
    assert result.q_score.tolist() == pytest.approx([0.0, 2 / 3])
    assert not result.success.any() and result.rewards[1].sum() == pytest.approx(2 / 3)
    assert result.infos[1]["done"]["goal_status"] == {"satisfied": [], "unsatisfied": [0]}


@pytest.mark.parametrize("limit", [5, 8])
def test_the_time_limit_means_what_it_says(bench: Bench, limit: int) -> None:
    env = bench.make(max_control_steps=limit)
    env.reset(ROWS, ROWS)
    result = env.step_chunk(raised(env, 0, 0, 10))
    assert result.step_valid.sum(axis=1).tolist() == [limit, limit]
    assert result.truncated.all() and not result.terminated.any()
    env.close()


def test_loading_tells_its_progress(bench: Bench) -> None:
    """Every object that a scene adds is told, beside the stages."""
    moves: list[int] = []
    bench.make(progress=lambda: moves.append(1)).close()
    assert len(moves) >= 2 * 5 + 4


def test_a_hanging_load_is_killed(bench: Bench) -> None:
    bench.control(hang="load")
    with pytest.raises(SimulatorFault, match=r"(make|start): no answer and no progress"):
        bench.make(load_deadline_s=3.0)


def test_a_crash_in_a_step_voids_the_episodes(bench: Bench) -> None:
    env = RestartingEnv(bench.make, limit=2)
    env.reset(ROWS, ROWS)
    bench.control(crash="step")
    result = env.step_chunk(np.zeros((2, 4, 23), np.float32))
    assert result.infra_fault.all() and not result.step_valid.any()
    assert "SIGSEGV" in env.faults[0] and "omni.physx" in env.faults[0]
    env.reset(ROWS, ROWS)
    assert not env.step_chunk(np.zeros((2, 4, 23), np.float32)).infra_fault.any()
    env.close()


def test_black_cameras_are_refused_after_retries(bench: Bench, env: RemoteEnv) -> None:
    bench.control(black=True)
    with pytest.raises(SimulatorFault, match=r"zed_link still black after 13 renders"):
        env.reset(ROWS, ROWS)


def test_frames_are_of_now(env: RemoteEnv) -> None:
    """Pictures come late: what a reset shows must not be what the last episode showed."""
    first = env.reset(ROWS, np.array([5, 5]))
    env.step_chunk(raised(env, 0, 2, 20))
    again = env.reset(ROWS, np.array([5, 5]))
    assert np.array_equal(first.images, again.images)
    moved = env.step_chunk(raised(env, 0, 2, 20)).frames
    assert not np.array_equal(moved.images[0], again.images[0])


def test_pictures_of_a_tiled_sensor_are_the_same(tmp_path: Path) -> None:
    """The last builds of 3.7 take the cameras out of each env's own observation."""
    bench = Bench(tmp_path, "3_7")
    seen = []
    for wanted in ({}, {"tiled": True}):
        bench.control(**wanted)
        env = bench.make()
        env.reset(ROWS, np.array([1, 2]))
        seen.append(env.step_chunk(raised(env, 0, 2, 5)).frames)
        env.close()
    assert np.array_equal(seen[0].images, seen[1].images)


def test_the_process_is_given_back(bench: Bench) -> None:
    """Isaac takes signals and switches garbage collection off; both are undone."""
    code = (
        "import gc, signal\nfrom rlrun.envs.remote_server import process_kept\n"
        "before = signal.getsignal(signal.SIGTERM)\n"
        "with process_kept():\n    import omnigibson\n    assert not gc.isenabled()\n"
        "    assert signal.getsignal(signal.SIGTERM) is not before\n"
        "print(gc.isenabled(), signal.getsignal(signal.SIGTERM) == before)"
    )
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{root}:{bench.paths}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_what_a_build_cannot_do_is_said(bench: Bench) -> None:
    with pytest.raises(RunError, match="no staged rewards"):
        bench.make(own={"reward": RewardMode.dense})
    with pytest.raises(RunError, match="instances of turning_on_radio are not there"):
        bench.make(own={"instance_ids": [301]})


def test_online_sampling_where_the_build_can(bench: Bench) -> None:
    env = bench.make(own={"instances": Instances.online})
    if not bench.paths.count("3_9"):
        assert len(env.reset(ROWS, ROWS)) == 2
    else:
        with pytest.raises(RunError, match="cannot place objects anew"):
            env.reset(ROWS, ROWS)
    env.close()


def test_there_is_no_expert(env: RemoteEnv) -> None:
    with pytest.raises(NotImplementedError, match=r"demos\.path"):
        env.expert_action(ROWS)


def test_the_product_does_not_know_the_stand_in() -> None:
    root = Path(__file__).parents[4] / "rlrun"
    assert not [path for path in root.rglob("*.py") if "standin" in path.read_text().lower()]


def test_an_own_reward_runs_beside_it_and_declared_numbers_of_its_info_come_out(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interpreter does not find the module by itself."""
    code = "def halved(observation, action, info, reward):\n    assert 'done' in info\n    return reward / 2\n"
    (tmp_path / "omnigibson_terms.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    number = "reward/reward_breakdown/potential"
    env = bench.make(max_control_steps=2000, reward={"half": "omnigibson_terms:halved"}, info=[number])
    env.reset(ROWS, ROWS)
    result = env.step_chunk(raised(env, 1, 3, 40))
    env.close()
    assert result.terminated.tolist() == [False, True] and result.rewards[1].sum() == pytest.approx(0.5)
    assert result.infos[1][TERMS] == pytest.approx({"half": 0.5, "simulator": 1.0})
    assert result.infos[1][NUMBERS][number][0] == pytest.approx(1.0)
